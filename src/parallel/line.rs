//! How ranks that share no memory hear of each other's end: each has a connection to rank 0, which tells the others.
//! The system closes the connections of a process that ends, and finds out within seconds that a host is gone; a process that
//! has stopped keeps its connections.
#![allow(unsafe_code)]

use super::call::{Call, Operation, WORDS};
use super::lock;
use super::segment::Failure;
use crate::types::NVTEDType;
use std::hash::{BuildHasher, RandomState};
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// How long rank 0 waits for the connections of the others, and these for its answer.
const PATIENCE: Duration = Duration::from_secs(3);
const ANSWER: Duration = Duration::from_millis(500);

/// Bytes of what rank 0 tells all ranks of itself.
pub const CARD: usize = 96;

const TOKEN: usize = 16;
const HOST: usize = 32;
const MOST_ADDRESSES: usize = 8;

/// Bytes of a message: what it is, a call, and a text.
const TEXT: usize = 512;
const FRAME: usize = 8 + 8 * WORDS + TEXT;

/// What a message says.
#[derive(Clone, Copy, PartialEq, Eq)]
enum News {
    Call = 1,
    Leaves = 2,
    Failure = 3,
}

/// What rank 0 has for the others before they are connected.
pub struct Offer {
    listener: Option<TcpListener>,
    pub card: [u8; CARD],
}

/// A connection to another rank.
struct End {
    rank: usize,
    who: String,
    stream: TcpStream,
    /// Its last call that is known.
    call: Call,
    received: Vec<u8>,
    unsent: Vec<u8>,
    /// Nothing is expected any more.
    quiet: bool,
}

/// What a rank holds of the connections: rank 0 those to all others, these the one to rank 0.
pub struct Line {
    ends: Mutex<Vec<End>>,
    /// The own last call, and whether the others know it.
    newest: Mutex<(Call, bool)>,
}

/// The name of this host, cut off.
fn host_name() -> [u8; HOST] {
    let mut name = [0u8; HOST];
    // SAFETY: writes at most so many bytes; the last one stays 0.
    unsafe { libc::gethostname(name.as_mut_ptr().cast(), HOST - 1) };
    name
}

/// A process, for messages.
fn who(pid: u32, host: &[u8]) -> String {
    let end = host.iter().position(|&byte| byte == 0).unwrap_or(host.len());
    format!("process {pid} of {}", String::from_utf8_lossy(&host[..end]))
}

/// The addresses of this host, the one that only it has last.
fn addresses() -> Vec<Ipv4Addr> {
    let mut found = Vec::new();
    let mut list = std::ptr::null_mut();
    // SAFETY: the system makes a list, which is read before it is freed.
    unsafe {
        if libc::getifaddrs(&mut list) == 0 {
            let mut one = list.cast_const();
            while let Some(interface) = one.as_ref() {
                one = interface.ifa_next;
                let address = interface.ifa_addr;
                if !address.is_null() && i32::from((*address).sa_family) == libc::AF_INET {
                    let address = address.cast::<libc::sockaddr_in>().read_unaligned();
                    found.push(Ipv4Addr::from(u32::from_be(address.sin_addr.s_addr)));
                }
            }
            libc::freeifaddrs(list);
        }
    }
    found.retain(|address| !address.is_loopback());
    found.truncate(MOST_ADDRESSES - 1);
    found.push(Ipv4Addr::LOCALHOST);
    found
}

/// Lets the system find out within seconds that the other host is gone.
fn prepare(stream: &TcpStream) -> std::io::Result<()> {
    let options = [
        (libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1),
        (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, 1),
        (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, 1),
        (libc::IPPROTO_TCP, libc::TCP_KEEPCNT, 3),
    ];
    for (level, option, value) in options {
        let value: libc::c_int = value;
        let bytes = size_of_val(&value) as libc::socklen_t;
        // SAFETY: the option is one integer.
        unsafe {
            libc::setsockopt(stream.as_raw_fd(), level, option, (&raw const value).cast(), bytes)
        };
    }
    stream.set_nodelay(true)?;
    stream.set_nonblocking(true)
}

impl Offer {
    /// That of rank 0, or of another rank, which has none.
    pub fn new(opens: bool) -> Self {
        let mut card = [0; CARD];
        let listener = opens.then(|| TcpListener::bind(("0.0.0.0", 0)).ok()).flatten();
        let port = listener.as_ref().and_then(|listener| listener.local_addr().ok());
        if let Some(port) = port.map(|address| address.port()) {
            card[..2].copy_from_slice(&port.to_le_bytes());
            let words = [0u8, 1].map(|word| RandomState::new().hash_one(word).to_le_bytes());
            card[2..2 + TOKEN].copy_from_slice(words.as_flattened());
            card[20..24].copy_from_slice(&std::process::id().to_le_bytes());
            card[24..24 + HOST].copy_from_slice(&host_name());
            for (to, address) in card[56..].chunks_exact_mut(4).zip(addresses()) {
                to.copy_from_slice(&address.octets());
            }
        }
        Self { listener, card }
    }

    /// Connects the ranks, all of which have the card of rank 0. None where rank 0 offers nothing or cannot be reached.
    pub fn meet(self, card: &[u8], (rank, size): (usize, usize)) -> Option<Line> {
        let token = &card[2..2 + TOKEN];
        let ends = match (rank, self.listener) {
            (0, Some(listener)) => accept(&listener, token, size),
            (0, None) => return None,
            _ => vec![connect(card, rank)?],
        };
        let call =
            Call { operation: None, ..Call::new(Operation::Create, NVTEDType::kNVTEByte, 0) };
        Some(Line { ends: Mutex::new(ends), newest: Mutex::new((call, true)) })
    }
}

impl End {
    fn new(rank: usize, who: String, stream: TcpStream) -> std::io::Result<Self> {
        prepare(&stream)?;
        let call =
            Call { operation: None, ..Call::new(Operation::Create, NVTEDType::kNVTEByte, 0) };
        let (received, unsent) = (Vec::new(), Vec::new());
        Ok(Self { rank, who, stream, call, received, unsent, quiet: false })
    }

    /// Sends a message as soon as the connection takes it.
    fn send(&mut self, news: News, call: &Call, text: &str) {
        let mut frame = [0u8; FRAME];
        frame[0] = news as u8;
        let words = call.words().map(u64::to_le_bytes);
        frame[8..8 + 8 * WORDS].copy_from_slice(words.as_flattened());
        let mut end = text.len().min(TEXT);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        frame[8 + 8 * WORDS..][..end].copy_from_slice(&text.as_bytes()[..end]);
        self.unsent.extend_from_slice(&frame);
        self.flush();
    }

    fn flush(&mut self) {
        while !self.unsent.is_empty() {
            match self.stream.write(&self.unsent) {
                Ok(written) => drop(self.unsent.drain(..written)),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // What a connection that has ended does not take, reading finds.
                Err(_) => return,
            }
        }
    }

    /// Reads what has come: whether the connection has ended, and the failure that the other rank tells of.
    fn read(&mut self) -> (bool, Option<String>) {
        let mut bytes = [0; 4096];
        let ended = loop {
            match self.stream.read(&mut bytes) {
                Ok(0) => break true,
                Ok(count) => self.received.extend_from_slice(&bytes[..count]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => break error.kind() != ErrorKind::WouldBlock,
            }
        };
        let mut failure = None;
        while self.received.len() >= FRAME {
            let frame: Vec<u8> = self.received.drain(..FRAME).collect();
            let (words, text) = frame[8..].split_at(8 * WORDS);
            match frame[0] {
                kind if kind == News::Call as u8 => {
                    let mut numbers = [0; WORDS];
                    for (number, bytes) in numbers.iter_mut().zip(words.as_chunks::<8>().0) {
                        *number = u64::from_le_bytes(*bytes);
                    }
                    self.call = Call::of_words(&numbers);
                }
                kind if kind == News::Leaves as u8 => self.quiet = true,
                _ => {
                    let end = text.iter().position(|&byte| byte == 0).unwrap_or(TEXT);
                    failure = Some(String::from_utf8_lossy(&text[..end]).into_owned());
                }
            }
        }
        (ended, failure)
    }

    /// That the rank has ended.
    fn obituary(&self) -> String {
        let last = match self.call.operation {
            None => "it has made no call".into(),
            Some(_) => format!("its last known call was {}", self.call),
        };
        format!("rank {} ({}) has ended; {last}", self.rank, self.who)
    }
}

/// The connections of rank 0.
fn accept(listener: &TcpListener, token: &[u8], size: usize) -> Vec<End> {
    let deadline = Instant::now() + PATIENCE;
    let mut ends: Vec<End> = Vec::new();
    if listener.set_nonblocking(true).is_err() {
        return ends;
    }
    while ends.len() + 1 < size && Instant::now() < deadline {
        let Ok((mut stream, _)) = listener.accept() else {
            std::thread::sleep(Duration::from_millis(1));
            continue;
        };
        let mut hello = [0; TOKEN + 8 + HOST];
        let greeted = stream
            .set_nonblocking(false)
            .and_then(|()| stream.set_read_timeout(Some(ANSWER)))
            .and_then(|()| stream.read_exact(&mut hello));
        if greeted.is_err() || hello[..TOKEN] != *token || stream.write_all(token).is_err() {
            continue;
        }
        let number = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|i| hello[TOKEN + at + i]));
        let name = who(number(4), &hello[TOKEN + 8..]);
        ends.extend(End::new(number(0) as usize, name, stream));
    }
    ends
}

/// The connection of another rank to rank 0.
fn connect(card: &[u8], rank: usize) -> Option<End> {
    let port = u16::from_le_bytes([card[0], card[1]]);
    if port == 0 {
        return None;
    }
    let token = &card[2..2 + TOKEN];
    let mut hello = Vec::from(token);
    hello.extend_from_slice(&(rank as u32).to_le_bytes());
    hello.extend_from_slice(&std::process::id().to_le_bytes());
    hello.extend_from_slice(&host_name());
    let pid = u32::from_le_bytes([20, 21, 22, 23].map(|at| card[at]));
    let name = who(pid, &card[24..24 + HOST]);
    card[56..].as_chunks::<4>().0.iter().filter(|octets| octets[0] != 0).find_map(|octets| {
        let address = SocketAddr::from((Ipv4Addr::from(*octets), port));
        let mut stream = TcpStream::connect_timeout(&address, ANSWER).ok()?;
        let mut answer = [0; TOKEN];
        stream.set_read_timeout(Some(ANSWER)).ok()?;
        stream.write_all(&hello).ok()?;
        stream.read_exact(&mut answer).ok()?;
        if answer != *token {
            return None;
        }
        End::new(0, name.clone(), stream).ok()
    })
}

impl Line {
    /// Keeps the last call of this rank, for those who outlive it.
    pub fn announce(&self, call: &Call) {
        *lock(&self.newest) = (*call, false);
    }

    /// What has become of the other ranks. Never waits.
    pub fn look(&self) -> Option<Failure> {
        let mut ends = lock(&self.ends);
        let (call, known) = {
            let mut newest = lock(&self.newest);
            let before = *newest;
            newest.1 = true;
            before
        };
        let mut failure = None;
        for end in ends.iter_mut().filter(|end| !end.quiet) {
            end.flush();
            if !known && end.unsent.is_empty() {
                end.send(News::Call, &call, "");
            }
            let (ended, told) = end.read();
            if ended && !end.quiet {
                end.quiet = true;
                failure = told.or_else(|| Some(end.obituary()));
            } else if told.is_some() {
                failure = told;
            }
            if failure.is_some() {
                break;
            }
        }
        let failure = Failure::device(failure?);
        tell(&mut ends, News::Failure, &failure.cause);
        Some(failure)
    }

    /// Tells the other ranks of a failure.
    pub fn fail(&self, failure: &Failure) {
        tell(&mut lock(&self.ends), News::Failure, &failure.cause);
    }

    /// Says that this rank makes no calls any more.
    pub fn leave(&self) {
        let mut ends = lock(&self.ends);
        tell(&mut ends, News::Leaves, "");
        // A connection that is closed before all has been read is reset.
        ends.iter_mut().for_each(|end| drop(end.read()));
    }
}

fn tell(ends: &mut [End], news: News, text: &str) {
    let none = Call::new(Operation::Create, NVTEDType::kNVTEByte, 0);
    ends.iter_mut().filter(|end| !end.quiet).for_each(|end| end.send(news, &none, text));
}

const _: () = assert!(56 + 4 * MOST_ADDRESSES <= CARD);
