//! The walk along a list of candidates: who takes a call, and why others do not.
//!
//! A candidate declines before it writes anything, and the next one is asked. A failure is an error at once: it may
//! have written, so nobody else may run. Nothing is remembered from one call to the next, so that the same call
//! meets the same candidates.
#![allow(unsafe_code)]

use super::args::plugin::{Call, NVTEX_CALL_QUERY, NVTEX_PLUGIN_DECLINED, NVTEX_PLUGIN_OK, Needs};
use super::args::{BackendStatus, Facts, OPERATORS, OpTable, Outcome};
use super::policy::{self, Chain, Extra, View};
use super::registry::{Asks, Code, Execute, Impl, PluginCode, VARIANTS, place, variant_name};
use super::scratch;
use super::trace::{self, Span};
use crate::env::env;
use crate::error::{Error, MOST_NESTED, Result, State};
use crate::types::cudaStream_t;
use crate::verbose::{self, Level};
use std::ffi::{CStr, c_char, c_void};
use std::fmt::Debug;
use std::mem::MaybeUninit;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::time::Instant;

/// A call of an operator, whichever it is.
///
/// The order of the first fields is kept, and differs from that in [`Call`]: if two that were just written lay side
/// by side in both, the compiler would copy them by one load, which has to wait until both have left the store buffer.
#[repr(C)]
pub struct Operation<'a> {
    pub args: *const c_void,
    pub op: u32,
    pub stream: cudaStream_t,
    pub variant: u32,
    pub args_size: usize,
    /// The workspace that the caller has given, of operators that have one.
    pub workspace: Option<usize>,
    /// Writes what is known of the operands, which takes less time where they are kept than a copy does.
    pub facts: &'a dyn Fn(&mut Facts),
    /// Bytes of the operands, as far as they are known.
    pub bytes: &'a dyn Fn() -> Option<u64>,
    /// Runs the function of a table; none if the table has none.
    pub direct: &'a dyn Fn(&'static OpTable) -> Option<Result<Outcome>>,
    pub text: &'a dyn Debug,
}

impl Operation<'_> {
    pub fn name(&self) -> &'static str {
        variant_name(self.op, self.variant)
    }

    fn c_name(&self) -> &'static CStr {
        let names = OPERATORS[self.op as usize].variants;
        // SAFETY: an operator has the names of its variants, which are constants that end with a NUL.
        unsafe { CStr::from_ptr(*names.add(self.variant as usize)) }
    }

    fn place(&self) -> usize {
        place(self.op, self.variant)
    }
}

/// Most bytes of a reason that a plugin gives.
const REASON: usize = 512;

/// Declines whose reasons are kept.
const KEPT: usize = 8;

/// Why a candidate did not take a call.
#[derive(Clone, Copy)]
enum Why {
    /// The call uses what it does not take.
    Facts,
    Arch(u32),
    /// It is running the operator on this thread, which calls it again.
    Nested,
    Workspace {
        needed: usize,
        given: usize,
    },
    /// It said so itself, in its reason.
    Said,
    /// One of the library's own has, in `Asked::own`.
    Own,
}

/// Room for what candidates say. It is some kilobytes, which a call neither clears nor moves.
#[derive(Clone, Copy)]
struct Room {
    whys: [MaybeUninit<(&'static Impl, Why)>; KEPT],
    /// The last one is for those that are not kept.
    reasons: [MaybeUninit<[u8; REASON]>; KEPT + 1],
}

/// The candidates that have been asked so far, and what they said.
struct Asked<'a> {
    operation: &'a Operation<'a>,
    view: &'static View,
    thread: &'a State,
    facts: Facts,
    /// Whether the facts are known, and what plugins get of them.
    ready: bool,
    /// What plugins get. It stays in its place, because a copy of so many fields takes longer than a call.
    call: Call,
    needs: Needs,
    /// How many have declined.
    count: usize,
    room: &'a mut MaybeUninit<Room>,
    own: Vec<String>,
}

/// What a candidate says. It fits in registers: a result that is copied through memory would cost as much as asking
/// does.
enum Answer {
    /// It has run the call, or would.
    Takes,
    /// Why is noted.
    Declines,
    Fails(Box<Error>),
}

#[cold]
fn fails(error: Error) -> Answer {
    Answer::Fails(Box::new(error))
}

unsafe extern "C" {
    /// Calls `supports` or `execute`; an exception becomes NVTEX_PLUGIN_FAILED, with its text in the call's reason.
    fn nvte_plugin_call(function: Execute, user: *mut c_void, call: *const Call) -> i32;
    /// Calls `needs`.
    fn nvte_plugin_needs(
        function: Asks,
        user: *mut c_void,
        call: *const Call,
        needs: *mut Needs,
    ) -> i32;
}

impl<'a> Asked<'a> {
    #[inline]
    fn new(
        (operation, view): (&'a Operation<'a>, &'static View),
        thread: &'a State,
        room: &'a mut MaybeUninit<Room>,
        flags: u32,
    ) -> Self {
        let call = Call {
            struct_size: size_of::<Call>(),
            args: operation.args,
            args_size: operation.args_size,
            op: operation.op,
            variant: operation.variant,
            flags: flags | view.flags,
            device: 0,
            features: 0,
            stream: operation.stream,
            scratch: null_mut(),
            scratch_bytes: 0,
            reason: null_mut(),
            reason_bytes: REASON,
        };
        let needs = Needs { struct_size: size_of::<Needs>(), workspace_bytes: 0, scratch_bytes: 0 };
        let facts = Facts { dtypes: 0, modes: 0, features: 0 };
        let (ready, count, own) = (false, 0, Vec::new());
        Self { operation, view, thread, facts, ready, call, needs, count, room, own }
    }

    /// Finds out what every plugin is told, unless that fails.
    #[inline(never)]
    fn prepare(&mut self) -> Option<Box<Error>> {
        (self.operation.facts)(&mut self.facts);
        self.call.features = self.facts.features;
        if !self.view.domain.is_host() {
            match self.view.domain.device() {
                Ok(device) => self.call.device = device,
                Err(error) => return Some(Box::new(error)),
            }
        }
        self.ready = true;
        None
    }

    #[inline]
    fn declines(&mut self, one: &'static Impl, why: Why) -> Answer {
        if self.count < KEPT {
            let room = self.room.as_mut_ptr();
            // SAFETY: the room has so many places.
            unsafe { (&raw mut (*room).whys[self.count]).write(MaybeUninit::new((one, why))) };
        }
        self.count += 1;
        if policy::has_extra(Extra::Counters) {
            one.counters.declined.fetch_add(1, Ordering::Relaxed);
        }
        Answer::Declines
    }

    /// The declines that are kept.
    fn whys(&self) -> impl Iterator<Item = (&'static Impl, Why)> {
        let room = self.room.as_ptr();
        // SAFETY: `declines` has written the first places.
        (0..self.count.min(KEPT)).map(move |at| unsafe { (*room).whys[at].assume_init() })
    }

    /// Where the reason of the candidate is that is asked after `index` others.
    fn place_of_reason(&self, index: usize) -> *const u8 {
        let room = self.room.as_ptr();
        // SAFETY: the place lies in the room, whose bytes may be anything.
        unsafe { (&raw const (*room).reasons[index.min(KEPT)]).cast() }
    }

    /// Whether the devices of the domain are none that the candidate runs on, and which they are.
    #[cold]
    #[inline(never)]
    fn foreign_arch(&self, one: &Impl) -> Result<Option<u32>> {
        let arch = self.view.domain.arch()?;
        let most = if one.limits.max_arch == 0 { u32::MAX } else { one.limits.max_arch };
        Ok(Some(arch).filter(|arch| !(one.limits.min_arch..=most).contains(arch)))
    }

    /// Whether a plugin's candidate would take the call, for which it is made ready, and what it needs then. It is
    /// part of the loop over candidates, because several may decline before one runs.
    #[inline(always)]
    fn admit(&mut self, one: &'static Impl, code: &PluginCode) -> Answer {
        if !self.ready
            && let Some(error) = self.prepare()
        {
            return Answer::Fails(error);
        }
        if !one.limits.admits(&self.facts) {
            return self.declines(one, Why::Facts);
        }
        if (one.limits.min_arch, one.limits.max_arch) != (0, 0) {
            match self.foreign_arch(one) {
                Ok(None) => {}
                Ok(Some(arch)) => return self.declines(one, Why::Arch(arch)),
                Err(error) => return fails(error),
            }
        }
        if self.thread.is_inside(address(one)) {
            return self.declines(one, Why::Nested);
        }
        let room = self.room.as_mut_ptr();
        // SAFETY: the place lies in the room, and nobody else uses it.
        unsafe {
            let reason = (&raw mut (*room).reasons[self.count.min(KEPT)]).cast::<c_char>();
            reason.write(0);
            self.call.reason = reason;
        }
        if let Some(supports) = code.supports {
            // SAFETY: the record is complete, and the plugin gets back the pointer that it has given.
            match unsafe { nvte_plugin_call(supports, code.user, &self.call) } {
                NVTEX_PLUGIN_OK => {}
                NVTEX_PLUGIN_DECLINED => return self.declines(one, Why::Said),
                status => return fails(self.failure(one, status)),
            }
        }
        match code.needs {
            Some(needs) => self.ask_needs(one, needs, code.user),
            None => Answer::Takes,
        }
    }

    #[inline(never)]
    fn ask_needs(&mut self, one: &'static Impl, needs: Asks, user: *mut c_void) -> Answer {
        self.needs =
            Needs { struct_size: size_of::<Needs>(), workspace_bytes: 0, scratch_bytes: 0 };
        // SAFETY: the record is complete, and the plugin gets back the pointer that it has given.
        match unsafe { nvte_plugin_needs(needs, user, &self.call, &mut self.needs) } {
            NVTEX_PLUGIN_OK => {}
            NVTEX_PLUGIN_DECLINED => return self.declines(one, Why::Said),
            status => return fails(self.failure(one, status)),
        }
        let (needed, runs) = (self.needs.workspace_bytes, self.call.flags & NVTEX_CALL_QUERY == 0);
        match self.operation.workspace.filter(|given| runs && needed > *given) {
            Some(given) => self.declines(one, Why::Workspace { needed, given }),
            None => Answer::Takes,
        }
    }

    /// Lets a candidate run the call.
    #[inline]
    fn attempt(&mut self, one: &'static Impl) -> Answer {
        match &one.code {
            Code::Plugin(code) => self.run_plugin(one, code),
            Code::BuiltIn(table) => self.run_own(one, table),
        }
    }

    fn run_own(&mut self, one: &'static Impl, table: &'static OpTable) -> Answer {
        let (operation, domain) = (self.operation, self.view.domain);
        if !std::ptr::eq(one.domain, domain) {
            // The reference stands in for a device whose memory the host can address.
            if let Err(error) = domain.synchronize(operation.stream) {
                return fails(error);
            }
        }
        let outcome = match (operation.direct)(table) {
            Some(Ok(outcome)) => outcome,
            Some(Err(error)) => return fails(error),
            None => Outcome::unimplemented("it has no such operator"),
        };
        match outcome.status() {
            BackendStatus::NVTEX_BACKEND_OK => Answer::Takes,
            BackendStatus::NVTEX_BACKEND_UNIMPLEMENTED => {
                self.own.push(outcome.reason());
                self.declines(one, Why::Own)
            }
            _ => fails(failed(one, operation, &outcome.reason())),
        }
    }

    #[inline]
    fn run_plugin(&mut self, one: &'static Impl, code: &PluginCode) -> Answer {
        let answer = match policy::has_extra(Extra::Check) {
            true => self.admit_twice(one, code),
            false => self.admit(one, code),
        };
        match answer {
            Answer::Takes => {}
            other => return other,
        }
        if code.needs.is_some() && self.needs.scratch_bytes > 0 {
            return self.execute_with_scratch(one, code);
        }
        (self.call.scratch, self.call.scratch_bytes) = (null_mut(), 0);
        self.execute(one, code)
    }

    /// Asks a candidate as for sizes and as for a run, which may make no difference: a caller of a size gives no more
    /// than that later.
    #[cold]
    fn admit_twice(&mut self, one: &'static Impl, code: &PluginCode) -> Answer {
        let mut room = MaybeUninit::uninit();
        let of = (self.operation, self.view);
        let mut asked = Asked::new(of, self.thread, &mut room, NVTEX_CALL_QUERY);
        let query = asked.admit(one, code);
        let (before, answer) = (self.count, self.admit(one, code));
        let takes = |answer: &Answer| matches!(answer, Answer::Takes);
        let no_room =
            self.whys().nth(before).is_some_and(|(_, why)| matches!(why, Why::Workspace { .. }));
        if takes(&query) != takes(&answer) && !no_room {
            let text = |taken| if taken { "takes the call" } else { "declines the call" };
            let (with, without) = (text(takes(&query)), text(takes(&answer)));
            let why = format!("it {with} with NVTEX_CALL_QUERY, and {without} without");
            return fails(failed(one, self.operation, &why));
        }
        let (most, needed) = (asked.needs.workspace_bytes, self.needs.workspace_bytes);
        if takes(&query) && needed > most {
            let why = format!(
                "it needs {needed} bytes of workspace, and said {most} when NVTEX_CALL_QUERY was set"
            );
            return fails(failed(one, self.operation, &why));
        }
        answer
    }

    fn execute_with_scratch(&mut self, one: &'static Impl, code: &PluginCode) -> Answer {
        let (key, bytes) =
            ((self.view.domain, self.call.device, self.call.stream), self.needs.scratch_bytes);
        let guarded = policy::has_extra(Extra::Check) && self.view.domain.is_host();
        let guard = if guarded { scratch::GUARD } else { 0 };
        let block = match scratch::take(key, bytes.saturating_add(guard)) {
            Ok(block) => block,
            Err(error) => return fails(error),
        };
        if guarded {
            block.fill(bytes);
        }
        (self.call.scratch, self.call.scratch_bytes) = (block.ptr(), bytes);
        let answer = self.execute(one, code);
        if guarded && block.is_overrun(bytes) {
            let why = format!("it has written behind its {bytes} bytes of scratch memory");
            return fails(failed(one, self.operation, &why));
        }
        answer
    }

    #[inline(always)]
    fn execute(&mut self, one: &'static Impl, code: &PluginCode) -> Answer {
        let Some(errors) = self.thread.enter(address(one)) else {
            let text =
                format!("{}: plugins call operators {MOST_NESTED} deep in each other", one.id);
            return fails(Error::unsupported(text));
        };
        let floor = policy::floor();
        let status = match one.args_size <= self.call.args_size {
            // SAFETY: the record is complete, and the plugin gets back the pointer that it has given.
            true => unsafe { nvte_plugin_call(code.execute, code.user, &self.call) },
            false => execute_newer(one, code, &self.call),
        };
        drop(floor);
        drop(errors);
        match status {
            NVTEX_PLUGIN_OK => Answer::Takes,
            NVTEX_PLUGIN_DECLINED => self.declines(one, Why::Said),
            status => fails(self.failure(one, status)),
        }
    }

    /// The error of a plugin that has failed, with its reason.
    #[cold]
    fn failure(&self, one: &Impl, status: i32) -> Error {
        let reason = match (self.reason(self.count), status) {
            (reason, 2) => reason,
            (reason, status) => format!("status {status}, which is none of a plugin's; {reason}"),
        };
        failed(one, self.operation, &reason)
    }

    /// The reason that the plugin has written which was asked after `index` others.
    fn reason(&self, index: usize) -> String {
        let reason = self.place_of_reason(index);
        // SAFETY: the first byte was written before the plugin was asked, and each one before its end by the plugin:
        // nothing behind the first NUL is read.
        let bytes = (0..REASON).map(|at| unsafe { reason.add(at).read() });
        let bytes: Vec<u8> = bytes.take_while(|byte| *byte != 0).collect();
        match bytes.is_empty() {
            true => "no reason given".into(),
            false => {
                let text = String::from_utf8_lossy(&bytes);
                text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
            }
        }
    }

    /// Implementations and why each did not take the call: those that were asked, then those that were not.
    #[cold]
    fn refusals(&self) -> Vec<(&'static Impl, String)> {
        let facts = self.facts;
        let mut own = self.own.iter();
        let mut refusals = Vec::new();
        for (index, (one, why)) in self.whys().enumerate() {
            let text = match why {
                Why::Facts => one.limits.outside(self.operation.op, &facts),
                Why::Arch(arch) => {
                    let limits = &one.limits;
                    let most = match limits.max_arch {
                        0 => String::new(),
                        most => format!(" to {most}"),
                    };
                    format!("architecture {arch}, needs {}{most}", limits.min_arch)
                }
                Why::Nested => "it is running this operator on this thread, and calls it".into(),
                Why::Workspace { needed, given } => {
                    format!("needs {needed} bytes of workspace, has {given}")
                }
                Why::Said => self.reason(index),
                Why::Own => own.next().cloned().unwrap_or_default(),
            };
            refusals.push((one, text));
        }
        let Operation { op, variant, .. } = *self.operation;
        refusals.extend(self.view.excluded(op, variant));
        refusals
    }

    #[cold]
    fn nobody(&self) -> Error {
        let mut error = no_implementation(self.operation, self.refusals().into_iter());
        if self.count > KEPT {
            error.message += &format!("; {} more declined", self.count - KEPT);
        }
        error
    }
}

/// The error of an implementation that has failed.
pub fn failed(one: &Impl, operation: &Operation, reason: &str) -> Error {
    one.counters.failed.fetch_add(1, Ordering::Relaxed);
    Error::device(format!("{} ({}): {reason}", one.id, operation.name()))
}

/// Runs an implementation that was built with longer arguments than this library has: what it knows beyond is 0, as
/// if it were not used.
#[cold]
fn execute_newer(one: &Impl, code: &PluginCode, call: &Call) -> i32 {
    let mut words = vec![0u64; one.args_size.div_ceil(8)];
    // SAFETY: the block is longer than the arguments, which are plain data.
    unsafe {
        let to = words.as_mut_ptr().cast::<u8>();
        std::ptr::copy_nonoverlapping(call.args.cast::<u8>(), to, call.args_size);
        let call = Call { args: words.as_ptr().cast(), args_size: one.args_size, ..*call };
        nvte_plugin_call(code.execute, code.user, &call)
    }
}

/// What stands for an implementation among those that a thread is inside of.
fn address(one: &'static Impl) -> *const c_void {
    std::ptr::from_ref(one).cast()
}

/// What ran last, by the places of variants.
static LAST: [AtomicPtr<Impl>; VARIANTS] = [const { AtomicPtr::new(null_mut()) }; VARIANTS];

/// The implementation that ran last for a variant in this process.
pub fn last(op: u32, variant: u32) -> Option<&'static Impl> {
    let last = LAST[place(op, variant)].load(Ordering::Acquire);
    // SAFETY: an implementation is never freed.
    unsafe { last.as_ref() }
}

/// Notes which implementation runs. The line is only written to when that changes.
#[inline]
pub fn note(place: usize, one: &'static Impl) {
    let one = std::ptr::from_ref(one).cast_mut();
    if LAST[place].load(Ordering::Relaxed) != one {
        note_change(place, one);
    }
}

#[cold]
#[inline(never)]
fn note_change(place: usize, one: *mut Impl) {
    let before = LAST[place].swap(one, Ordering::AcqRel);
    verbose::line(Level::Dispatch, "dispatch", || {
        // SAFETY: an implementation is never freed.
        let (before, one) = unsafe { (before.as_ref(), &*one) };
        let variants = 0..OPERATORS[one.op as usize].variant_count as u32;
        let variant = variants.into_iter().find(|variant| self::place(one.op, *variant) == place);
        let name = variant_name(one.op, variant.unwrap_or_default());
        let before = before.map_or(String::new(), |before| format!(",after {}", before.id));
        format!("{name},{}{before}", one.id)
    });
}

/// Runs a call: asks one candidate after the other.
#[inline(never)]
pub fn run(operation: &Operation) -> Result<()> {
    let view = policy::view()?;
    if policy::no_extras() {
        return run_unseen(operation, view, view.chain(operation.place()));
    }
    let span = policy::has_extra(Extra::Trace)
        .then(|| trace::begin(operation.c_name(), view.domain, operation.stream));
    let started = policy::has_extra(Extra::Counters).then(Instant::now);
    let one = walk(operation, view, view.chain(operation.place()))?;
    ran(operation, view, one, (span, started))
}

/// Runs a call at which nobody looks.
#[inline(never)]
pub fn run_unseen(operation: &Operation, view: &'static View, chain: &'static Chain) -> Result<()> {
    walk(operation, view, chain).map(|_| ())
}

/// The candidate that has run the call.
#[inline]
fn walk(
    operation: &Operation,
    view: &'static View,
    chain: &'static Chain,
) -> Result<&'static Impl> {
    State::of_thread(|thread| {
        let mut room = MaybeUninit::uninit();
        let mut asked = Asked::new((operation, view), thread, &mut room, 0);
        for &one in chain.candidates {
            match asked.attempt(one) {
                Answer::Takes => {
                    note(chain.place, one);
                    return Ok(one);
                }
                Answer::Declines => {}
                Answer::Fails(error) => return Err(*error),
            }
        }
        let error = asked.nobody();
        verbose::line(Level::Dispatch, "dispatch", || format!("declined,{}", error.message));
        Err(error)
    })
}

/// What is done after a call where somebody looks.
fn ran(
    operation: &Operation,
    view: &View,
    one: &Impl,
    (span, started): (Option<Span>, Option<Instant>),
) -> Result<()> {
    if let Some(span) = span {
        span.end(operation.name(), view.domain, &one.id, (operation.bytes)());
    }
    if let Some(started) = started {
        one.counters.calls.fetch_add(1, Ordering::Relaxed);
        let ns = u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        one.counters.host_ns.fetch_add(ns, Ordering::Relaxed);
    }
    let (domain, name) = (view.domain, operation.name());
    verbose::line(Level::Exec, "exec", || {
        format!("{domain},{name},{},{:?}", one.id, operation.text)
    });
    if env().sync { domain.synchronize(operation.stream) } else { Ok(()) }
}

/// What a candidate would say to a call, which does not run.
pub enum Opinion {
    /// It would be asked to run the call; bytes of workspace that it needs. Where `execute` may decline, that is
    /// not known before.
    Takes(usize),
    Declines(String),
}

/// Bytes of workspace that one of the library's own needs for a call, or why it declines.
pub type OwnOpinion<'a> =
    dyn FnMut(&'static Impl, &'static OpTable) -> Result<std::result::Result<usize, String>> + 'a;

/// What the candidates of a view would say to a call, in order. `own` is asked for the library's own.
pub fn opinions(
    operation: &Operation,
    view: &'static View,
    own: &mut OwnOpinion,
) -> Result<Vec<(&'static Impl, Opinion)>> {
    let mut opinions = Vec::new();
    for &one in view.chain(operation.place()).candidates {
        let opinion = match &one.code {
            Code::BuiltIn(table) => match own(one, table)? {
                Ok(bytes) => Opinion::Takes(bytes),
                Err(why) => Opinion::Declines(why),
            },
            Code::Plugin(code) => State::of_thread(|thread| {
                let mut room = MaybeUninit::uninit();
                let of = (operation, view);
                let mut asked = Asked::new(of, thread, &mut room, NVTEX_CALL_QUERY);
                Ok(match asked.admit(one, code) {
                    Answer::Takes => Opinion::Takes(asked.needs.workspace_bytes),
                    Answer::Fails(error) => return Err(*error),
                    Answer::Declines => {
                        let why = asked.refusals().into_iter().next().map(|(_, why)| why);
                        Opinion::Declines(why.unwrap_or_default())
                    }
                })
            })?,
        };
        opinions.push((one, opinion));
    }
    Ok(opinions)
}

/// The most workspace that a candidate needs which takes the call.
pub fn most_workspace(opinions: &[(&'static Impl, Opinion)]) -> usize {
    let needed = opinions.iter().map(|(_, opinion)| match opinion {
        Opinion::Takes(bytes) => *bytes,
        Opinion::Declines(_) => 0,
    });
    needed.max().unwrap_or(0)
}

/// The error of a call that nobody takes.
#[cold]
pub fn nobody(operation: &Operation, view: &View, opinions: &[(&'static Impl, Opinion)]) -> Error {
    let declines = opinions.iter().filter_map(|(one, opinion)| match opinion {
        Opinion::Takes(_) => None,
        Opinion::Declines(why) => Some((*one, why.clone())),
    });
    no_implementation(operation, declines.chain(view.excluded(operation.op, operation.variant)))
}

fn no_implementation(
    operation: &Operation,
    refusals: impl Iterator<Item = (&'static Impl, String)>,
) -> Error {
    let refusals: Vec<_> = refusals.map(|(one, why)| format!("{}: {why}", one.id)).collect();
    let name = operation.name();
    Error::unsupported(match refusals.is_empty() {
        true => format!("{name}: no implementation"),
        false => format!("{name}: no implementation: {}", refusals.join("; ")),
    })
}
