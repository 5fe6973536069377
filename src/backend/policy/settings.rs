//! What a policy says, its text, and the order of candidates that follows from it.

use crate::backend::args::plugin::NVTEX_IMPL_DETERMINISTIC;
use crate::backend::domain::Domain;
use crate::backend::registry::{self, Impl, Kind, op_name, variant_name};
use crate::env::env;
use crate::error::{Error, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Display, Formatter};

/// A word of an order, which stands for implementations.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Token {
    Kind(Kind),
    /// `vendor:NAME`
    Vendor(String),
    /// `impl:ID`
    Id(String),
    /// `*`: all that are left, in the order that `prefer` gives.
    Rest,
}

impl Token {
    fn parse(word: &str) -> Option<Self> {
        let named = |prefix: &str| {
            word.strip_prefix(prefix).filter(|name| !name.is_empty()).map(str::to_owned)
        };
        match word {
            "*" => Some(Self::Rest),
            "default" | "flagos" => Some(Self::Kind(Kind::Default)),
            "vendor" => Some(Self::Kind(Kind::Vendor)),
            "reference" => Some(Self::Kind(Kind::Reference)),
            _ => named("vendor:").map(Self::Vendor).or_else(|| named("impl:").map(Self::Id)),
        }
    }

    fn matches(&self, one: &Impl) -> bool {
        match self {
            Self::Kind(kind) => one.kind == *kind,
            Self::Vendor(name) => {
                one.vendor.as_ref().is_some_and(|vendor| vendor.eq_ignore_ascii_case(name))
            }
            Self::Id(id) => one.id.eq_ignore_ascii_case(id),
            Self::Rest => true,
        }
    }
}

impl Display for Token {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kind(kind) => kind.fmt(f),
            Self::Vendor(name) => write!(f, "vendor:{name}"),
            Self::Id(id) => write!(f, "impl:{id}"),
            Self::Rest => f.write_str("*"),
        }
    }
}

/// What an order is for. The narrowest that there is decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Subject {
    All,
    Op(u32),
    Variant(u32, u32),
}

/// What a policy says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    prefer: Option<Kind>,
    pub strict: bool,
    orders: BTreeMap<Subject, Vec<Token>>,
    /// None: all vendors.
    allow: Option<BTreeSet<String>>,
    deny: BTreeSet<String>,
    pub deterministic: bool,
    /// None: the domain of the process.
    pub domain: Option<String>,
}

const ORDER_WORDS: &str = "default, vendor, reference, vendor:NAME, impl:ID or *, divided by |";

impl Settings {
    /// Changes what `text` names: pieces `name=value`, divided by semicolons. `argument` is where the text comes
    /// from.
    pub fn change(&mut self, argument: &str, text: &str) -> Result<()> {
        if text.trim().is_empty() {
            return Ok(());
        }
        for piece in text.split(';') {
            let wrong =
                |expected: String| Error::argument(argument, expected, format!("{piece:?}"));
            let Some((name, value)) = piece.split_once('=') else {
                return Err(wrong("pieces NAME=VALUE, divided by semicolons".into()));
            };
            let [name, value] = [name, value].map(|part| part.trim().to_ascii_lowercase());
            let switch = || match value.as_str() {
                "0" => Ok(false),
                "1" => Ok(true),
                _ => Err(wrong(format!("{name}=0 or {name}=1"))),
            };
            match name.as_str() {
                "prefer" => match Token::parse(&value) {
                    Some(Token::Kind(kind)) => self.prefer = Some(kind),
                    _ => {
                        return Err(wrong(
                            "prefer=default, prefer=vendor or prefer=reference".into(),
                        ));
                    }
                },
                "strict" => self.strict = switch()?,
                "deterministic" => self.deterministic = switch()?,
                "allow_vendors" => self.allow = vendors(&value, "all").map_err(wrong)?,
                "deny_vendors" => {
                    self.deny = vendors(&value, "").map_err(wrong)?.unwrap_or_default()
                }
                "domain" => {
                    if value.is_empty() {
                        return Err(wrong(
                            "domain=NAME, or domain=auto for that of the process".into(),
                        ));
                    }
                    self.domain = Some(value).filter(|value| value != "auto");
                }
                _ => self.change_order(argument, piece)?,
            }
        }
        Ok(())
    }

    /// Changes one order: `order=...` for all operators, `gemm=...`, or `softmax.causal_forward=...`.
    fn change_order(&mut self, argument: &str, piece: &str) -> Result<()> {
        let wrong = |expected: &str| Error::argument(argument, expected, format!("{piece:?}"));
        let (name, value) = piece
            .split_once('=')
            .ok_or_else(|| wrong("pieces OPERATOR=ORDER, divided by semicolons"))?;
        let name = name.trim();
        let subjects = match name.eq_ignore_ascii_case("order") {
            true => vec![Subject::All],
            false => subjects(name),
        };
        if subjects.is_empty() {
            return Err(wrong(
                "an operator, one of its variants, or order, prefer, strict, allow_vendors, deny_vendors, \
                 deterministic or domain before =",
            ));
        }
        let words = value.split('|').map(|word| Token::parse(&word.trim().to_ascii_lowercase()));
        let order = words.collect::<Option<Vec<_>>>().ok_or_else(|| wrong(ORDER_WORDS))?;
        for subject in subjects {
            self.orders.insert(subject, order.clone());
        }
        Ok(())
    }

    /// What the variables say.
    pub fn of_environment() -> Result<Self> {
        let mut settings = Self::default();
        let (of, mut pieces) = (&env().policy, Vec::new());
        pieces.push(("NVTE_PREFER", "prefer", &of.prefer));
        pieces.push(("NVTE_STRICT", "strict", &of.strict));
        pieces.push(("NVTE_ALLOW_VENDORS", "allow_vendors", &of.allow_vendors));
        pieces.push(("NVTE_DENY_VENDORS", "deny_vendors", &of.deny_vendors));
        for (variable, name, value) in pieces {
            match value {
                Some(value) if value.contains(';') => {
                    return Err(Error::argument(variable, "no semicolon", format!("{value:?}")));
                }
                Some(value) => settings.change(variable, &format!("{name}={value}"))?,
                None => {}
            }
        }
        for piece in of.op_order.iter().flat_map(|orders| orders.split(';')) {
            settings.change_order("NVTE_OP_ORDER", piece)?;
        }
        Ok(settings)
    }

    /// These settings in the domain of others.
    pub fn in_domain_of(&self, others: &Self) -> Self {
        Self { domain: others.domain.clone(), ..self.clone() }
    }

    /// The order for a variant, and whether the program or the user has named its first word.
    fn order(&self, op: u32, variant: u32) -> (Vec<Token>, bool) {
        let subjects = [Subject::Variant(op, variant), Subject::Op(op), Subject::All];
        match subjects.iter().find_map(|subject| self.orders.get(subject)) {
            Some(order) => (order.clone(), true),
            None => (self.default_order().map(Token::Kind).to_vec(), self.prefer.is_some()),
        }
    }

    fn default_order(&self) -> [Kind; 3] {
        match self.prefer.unwrap_or(Kind::Default) {
            Kind::Default => [Kind::Default, Kind::Vendor, Kind::Reference],
            Kind::Vendor => [Kind::Vendor, Kind::Default, Kind::Reference],
            Kind::Reference => [Kind::Reference, Kind::Default, Kind::Vendor],
        }
    }

    /// Why an implementation of the variant is no candidate in a domain, whatever the order; none if it is one.
    pub fn excludes(&self, one: &Impl, domain: &Domain) -> Option<String> {
        let in_domain = std::ptr::eq(one.domain, domain);
        let stands_in =
            one.domain.is_host() && one.kind == Kind::Reference && domain.host_accessible();
        if !in_domain && !stands_in {
            return Some(format!("domain {}, the call is on {domain}", one.domain));
        }
        if let Some(vendor) = one.vendor.as_deref().map(str::to_ascii_lowercase) {
            if self.deny.contains(&vendor) {
                return Some(format!("vendor {vendor} is denied (deny_vendors)"));
            }
            if self.allow.as_ref().is_some_and(|allowed| !allowed.contains(&vendor)) {
                return Some(format!("vendor {vendor} is not allowed (allow_vendors)"));
            }
        }
        if self.deterministic && !one.has(NVTEX_IMPL_DETERMINISTIC) {
            return Some("not deterministic".into());
        }
        one.lost_in_fork().then(|| "forked process".into())
    }

    /// The implementations of a variant that are asked, in order.
    pub fn candidates(
        &self,
        (op, variant): (u32, u32),
        domain: &Domain,
        registered: &[&'static Impl],
    ) -> Vec<&'static Impl> {
        let eligible = |one: &&Impl| one.covers(variant) && self.excludes(one, domain).is_none();
        let mut left: Vec<_> = registered.iter().copied().filter(eligible).collect();
        let kinds = self.default_order();
        let rank = |one: &Impl| kinds.iter().position(|kind| *kind == one.kind);
        let mut chosen = Vec::with_capacity(left.len());
        let (order, named) = self.order(op, variant);
        for token in order {
            let mut matching: Vec<_> = left.extract_if(.., |one| token.matches(one)).collect();
            match token {
                Token::Rest => matching.sort_by(|a, b| {
                    let key = |one: &Impl| (rank(one), -one.priority);
                    key(a).cmp(&key(b)).then_with(|| a.id.cmp(&b.id))
                }),
                _ => matching
                    .sort_by(|a, b| b.priority.cmp(&a.priority).then_with(|| a.id.cmp(&b.id))),
            }
            chosen.append(&mut matching);
            // Where nobody has named the first word, it is the first that matches anything.
            if self.strict && (named || !chosen.is_empty()) {
                break;
            }
        }
        chosen
    }
}

/// A list of names; `none` is an empty one, and none is `all`.
fn vendors(value: &str, all: &str) -> std::result::Result<Option<BTreeSet<String>>, String> {
    if value == "none" {
        return Ok(Some(BTreeSet::new()));
    }
    if value == all {
        return if all.is_empty() { Err("names of vendors, or none".into()) } else { Ok(None) };
    }
    let names: BTreeSet<_> = value.split(',').map(|name| name.trim().to_owned()).collect();
    match names.contains("") {
        true => Err("names of vendors, divided by commas, or none".into()),
        false => Ok(Some(names)),
    }
}

/// What a name before an order stands for.
fn subjects(name: &str) -> Vec<Subject> {
    let found = registry::find_op(name).map(|(op, variant)| match variant {
        None => Subject::Op(op),
        Some(variant) => Subject::Variant(op, variant),
    });
    found.into_iter().collect()
}

impl Display for Settings {
    /// A text from which the same settings can be made.
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let mut pieces = Vec::new();
        let names = |names: &BTreeSet<String>| match names.is_empty() {
            true => "none".to_owned(),
            false => names.iter().map(String::as_str).collect::<Vec<_>>().join(","),
        };
        pieces.extend(self.prefer.map(|prefer| format!("prefer={prefer}")));
        pieces.extend(self.strict.then(|| "strict=1".into()));
        for (subject, order) in &self.orders {
            let order: Vec<_> = order.iter().map(Token::to_string).collect();
            let name = match *subject {
                Subject::All => "order",
                Subject::Op(op) => op_name(op),
                Subject::Variant(op, variant) => variant_name(op, variant),
            };
            pieces.push(format!("{name}={}", order.join("|")));
        }
        pieces.extend(self.allow.as_ref().map(|allow| format!("allow_vendors={}", names(allow))));
        pieces
            .extend((!self.deny.is_empty()).then(|| format!("deny_vendors={}", names(&self.deny))));
        pieces.extend(self.deterministic.then(|| "deterministic=1".into()));
        pieces.extend(self.domain.as_ref().map(|domain| format!("domain={domain}")));
        f.write_str(&pieces.join(";"))
    }
}
