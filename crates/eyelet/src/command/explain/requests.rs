//! The explanation of one request on a connection, if flags say one.

use std::io::{self, Write};

use eyelet_config::Config;
use eyelet_policy::{FactSource, RequestFacts, RequestRules, RuleId, Verdict};

use super::args::ExplainArgs;
use super::evidence;

/// Prints which rule decides the request, and why no earlier one does. `rule` has decided its
/// connection.
pub(super) fn print(
    args: &ExplainArgs,
    (config, rule): (&Config, RuleId),
    facts: &mut impl FactSource,
    out: &mut impl Write,
) -> io::Result<()> {
    if args.method.is_none() && args.path.is_none() {
        return Ok(());
    }
    let method = args.method.as_deref().unwrap_or("GET");
    let asked = args.path.as_deref().unwrap_or("/");
    let path = asked.split_once('?').map_or(asked, |(path, _)| path);
    let action = config.rules.get(rule.0 as usize).map(|rule| rule.action);
    if action.is_none_or(|action| action.requests().is_none()) {
        return writeln!(out, "request: no request is read");
    }
    let RequestRules { deciding: rules, shadows } = config.policy.request_rules(rule, facts);
    let request = RequestFacts { method, path, others: None };
    let Verdict { rule: decides, refuse } = match &*rules {
        [] => Verdict { rule: Some(rule), refuse: None },
        rules => config.policy.decide_request(rules, &request),
    };
    let label = |rule: RuleId| {
        evidence::label(rule, config.rules.get(rule.0 as usize).map_or("", |rule| rule.name))
    };
    let by = decides.map_or_else(|| "no rule".to_owned(), label);
    match refuse {
        None => {
            let holds = |rule: RuleId| config.rules.get(rule.0 as usize)?.action.hold();
            // A verdict on the connection has let its requests pass.
            let is_others = decides != Some(rule);
            let is_held = decides.and_then(holds).is_some_and(|hold| hold.of_requests || is_others);
            let what = if is_held { "is held" } else { "passes" };
            writeln!(out, "request: {method} {path} {what} by {by}")?;
        }
        Some(why) => writeln!(out, "request: {method} {path} gets 403 by {by}: {why}")?,
    }
    for miss in config.policy.request_misses(&rules, &request) {
        let asks = config.policy.matcher_text(miss.rule, miss.matcher);
        writeln!(out, "  {}: {} = {asks} does not hold", label(miss.rule), miss.matcher)?;
    }
    for (shadow, is_refused) in config.policy.shadows_by_request(&shadows, decides, &request) {
        let action = config.rules.get(shadow.0 as usize).map_or("", |rule| rule.action.name());
        let would = if is_refused { "refuse" } else { action };
        writeln!(out, "shadow:  {} would {would}", label(shadow))?;
    }
    Ok(())
}
