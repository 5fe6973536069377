//! Explanations: between a begin and an end on a thread, operators do not run, but tell who would run them, and
//! why others would not.
#![allow(unsafe_code)]

use super::call::{self, Operation, Opinion};
use super::policy::{self, Extra, View};
use crate::error::{Error, Result};
use std::cell::RefCell;

/// What would become of a call.
pub struct Explanation<'a> {
    /// Name of the variant.
    pub name: &'static str,
    pub arguments: &'a str,
    /// The implementation that would be asked first to run it; none if nobody takes the call.
    pub chosen: Option<&'static str>,
    /// The other implementations, each with its reason; one that would be asked next has none.
    pub others: Vec<(&'static str, Option<String>)>,
}

/// Takes explanations.
pub type Listener = Box<dyn Fn(&Explanation)>;

thread_local! {
    static LISTENER: RefCell<Option<Listener>> = const { RefCell::new(None) };
}

/// Whether operators of this thread explain themselves and do not run.
pub fn is_on() -> bool {
    let has = |listener: &RefCell<Option<Listener>>| {
        listener.try_borrow().is_ok_and(|listener| listener.is_some())
    };
    policy::has_extra(Extra::Threads) && LISTENER.try_with(has).unwrap_or(false)
}

pub fn begin(listener: Listener) -> Result<()> {
    policy::set_extra(Extra::Threads, true);
    LISTENER.with(|current| match current.try_borrow_mut() {
        Ok(mut current) if current.is_none() => {
            *current = Some(listener);
            Ok(())
        }
        _ => Err(Error::unsupported("operators of this thread explain themselves already")),
    })
}

pub fn end() -> Result<()> {
    LISTENER.with(|current| match current.try_borrow_mut() {
        Ok(mut current) if current.is_some() => {
            *current = None;
            Ok(())
        }
        Ok(_) => Err(Error::unsupported("operators of this thread do not explain themselves")),
        Err(_) => Err(Error::unsupported("an explanation is being given")),
    })
}

/// Tells the listener of this thread what would become of a call. An error if nobody takes it, as the call itself
/// would be.
pub fn explain(operation: &Operation, view: &'static View) -> Result<()> {
    let mut opinions = call::opinions(operation, view, &mut |_, table| {
        Ok(match table.has(operation.op) {
            true => Ok(0),
            false => Err("it has no such operator".into()),
        })
    })?;
    let excluded = view.excluded(operation.op, operation.variant);
    opinions.extend(excluded.into_iter().map(|(one, why)| (one, Opinion::Declines(why))));
    let takes = |opinion: &Opinion| matches!(opinion, Opinion::Takes(_));
    let chosen = opinions.iter().position(|(_, opinion)| takes(opinion));
    let others = opinions.iter().enumerate().filter(|(at, _)| Some(*at) != chosen);
    let arguments = format!("{:?}", operation.text);
    let explanation = Explanation {
        name: operation.name(),
        arguments: &arguments,
        chosen: chosen.map(|at| &*opinions[at].0.id),
        others: others
            .map(|(_, (one, opinion))| {
                let why = match opinion {
                    Opinion::Takes(_) => None,
                    Opinion::Declines(why) => Some(why.clone()),
                };
                (&*one.id, why)
            })
            .collect(),
    };
    LISTENER.with(|listener| {
        if let Ok(Some(listener)) = listener.try_borrow().as_deref() {
            listener(&explanation);
        }
    });
    match chosen {
        Some(_) => Ok(()),
        None => {
            opinions.retain(|(one, _)| view.is_candidate(operation.op, operation.variant, one));
            Err(call::nobody(operation, view, &opinions))
        }
    }
}
