//! Checks of a run before it begins: rules for names that the list does not have, names that would
//! pass unread beside those that a rule reads, and secrets that no rule would put in.

use std::collections::BTreeSet;

use eyelet_config::{SandboxAction, SandboxProfile, SecretSettings};
use eyelet_secrets::SecretTerms;

use super::serving::{HTTP, RulePart, RunServing, both, patterns, rest_at};

/// Names that a message shows at most.
const SHOWN_MAX: usize = 5;

impl RunServing<'_> {
    /// The places to check where no command is run. A profile without a list gets it by an option,
    /// and any name may stand there.
    #[must_use]
    pub fn with_list_to_come(self, profile: &SandboxProfile) -> Self {
        let has_list = !profile.allow.is_empty() || !profile.allow_files.is_empty();
        let lets_all_pass = self.lets_all_pass || !has_list;
        Self { lets_all_pass, asks: self.asks && !lets_all_pass, ..self }
    }

    /// Checks the rules, the ports and the secrets. Returns notes for the user.
    ///
    /// # Errors
    /// The mistakes, as lines.
    pub fn check(&self, secrets: &[SecretSettings]) -> Result<Vec<String>, String> {
        self.check_rules()?;
        self.checked_ports()?;
        let mut notes = Vec::new();
        for SecretSettings { terms, .. } in secrets {
            let others = self.check_secret(terms)?.into_iter();
            notes.extend(
                others.map(|name| format!("{}: no rule mints for {name}", terms.placeholder)),
            );
        }
        if let Some(unread) = self.unread().filter(|_| !secrets.is_empty()) {
            notes.push(format!(
                "no rule reads what goes to {unread}: placeholders pass as they are"
            ));
        }
        Ok(notes)
    }

    /// Checks that the list has the names of the rules, and that no rule reads the names below one
    /// and lets that itself pass unread by the same entry. Where all may be reached, any name may
    /// have rules.
    ///
    /// # Errors
    /// The mistakes, a line each: what a rule was written to read would pass unread.
    fn check_rules(&self) -> Result<(), String> {
        if self.lets_all_pass {
            return Ok(());
        }
        let ports = self.ports();
        let listed: BTreeSet<&str> =
            ports.iter().flat_map(|port| self.list.names_at(*port)).collect();
        let patterns: Vec<String> = listed.iter().copied().flat_map(patterns).collect();
        let rest = self.rest();
        let mut faults = BTreeSet::new();
        for rule in self.rules {
            for name in &rule.sni {
                if !patterns.iter().any(|of| both(name, of).is_some()) {
                    faults
                        .insert(format!("rule \"{}\": no entry of the list has {name}", rule.name));
                }
                let parent = name.strip_prefix("*.").unwrap_or_default();
                let has_both = listed.iter().any(|of| of.strip_prefix('.') == Some(parent));
                if rule.action != SandboxAction::Splice && has_both && rest.contains(parent) {
                    faults.insert(format!(
                        "rule \"{}\" has {name}, and {parent} itself, which .{parent} allows, too, \
                         would pass unread: write `sni = [\"{parent}\", \"{name}\"]`, or a rule \
                         with `action = \"splice\"` for {parent}",
                        rule.name
                    ));
                }
            }
        }
        match faults.is_empty() {
            true => Ok(()),
            false => Err(faults.into_iter().collect::<Vec<_>>().join("\n")),
        }
    }

    /// The names of the list that no rule of the profile has, at ports of TLS.
    fn rest(&self) -> BTreeSet<String> {
        let mut rest = BTreeSet::new();
        for port in self.ports().into_iter().filter(|port| *port != HTTP) {
            let name = rest_at(port);
            let parts = self.parts(port).into_iter().filter(|part| part.name == name);
            rest.extend(parts.filter_map(|part| part.names).flatten());
        }
        rest
    }

    /// The names that pass by TLS unread, in words. `None`: there are none.
    fn unread(&self) -> Option<String> {
        let mut unread = BTreeSet::new();
        for port in self.ports().into_iter().filter(|port| *port != HTTP) {
            for part in self.parts(port) {
                if part.action == Some(&SandboxAction::Splice) {
                    unread.extend(part.names.unwrap_or_else(|| vec!["all others".to_owned()]));
                }
            }
        }
        let more = unread.len().saturating_sub(SHOWN_MAX);
        let shown: Vec<String> = unread.into_iter().take(SHOWN_MAX).collect();
        match (shown.is_empty(), more) {
            (true, _) => None,
            (false, 0) => Some(shown.join(", ")),
            (false, more) => Some(format!("{} and {more} more", shown.join(", "))),
        }
    }

    /// Checks that a rule mints for the names of a secret: it takes the place of its placeholder in
    /// requests that Eyelet can read. Returns the names for which none does.
    ///
    /// # Errors
    /// No rule does for any of them.
    fn check_secret(&self, terms: &SecretTerms) -> Result<Vec<String>, String> {
        let parts: Vec<RulePart<'_>> =
            self.ports().into_iter().flat_map(|port| self.parts(port)).collect();
        let is_minted = |name: &String| {
            let minted =
                |part: &&RulePart<'_>| matches!(part.action, Some(SandboxAction::Mint { .. }));
            parts.iter().filter(minted).any(|part| {
                let shares = |own: &String| both(own, name).is_some();
                part.names.as_ref().is_none_or(|own| own.iter().any(shares))
            })
        };
        let names: Vec<String> = terms.names.iter().map(ToString::to_string).collect();
        let others: Vec<String> = names.iter().filter(|name| !is_minted(name)).cloned().collect();
        match others.len() == names.len() {
            true => Err(format!(
                "{}: no rule with `certificate = \"mint\"` has {} of the list, so it would not be \
                 used",
                terms.placeholder,
                names.join(", ")
            )),
            false => Ok(others),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::path::Path;

    use eyelet_config::SandboxRule;

    use super::*;
    use crate::list::AllowList;

    fn rule(sni: &[&str], action: SandboxAction) -> SandboxRule {
        let sni = sni.iter().map(|name| (*name).to_owned()).collect();
        let (methods, paths) = (Vec::new(), Vec::new());
        SandboxRule { name: "opened".into(), sni, action, methods, paths }
    }

    fn serving<'s>(list: &'s AllowList, rules: &'s [SandboxRule]) -> RunServing<'s> {
        let (lets_all_pass, private, log) = (false, &[][..], Path::new("/dev/null"));
        RunServing { list, rules, lets_all_pass, asks: false, private, log }
    }

    const MINT: SandboxAction = SandboxAction::Mint { upstream_ca: None };

    #[test]
    fn a_rule_that_leaves_names_unread_is_a_mistake() {
        let list = AllowList::read(".a.example\nb.example:8443\ntcp c.example:22").unwrap();
        let check = |rules: &[SandboxRule]| serving(&list, rules).check_rules().err();
        for (sni, expected) in [
            (&["wm.example"][..], Some("rule \"opened\": no entry of the list has wm.example")),
            (&["b.example", "*.b.example"], Some("no entry of the list has *.b.example")),
            (&["c.example"], Some("no entry of the list has c.example")),
            (&["*.a.example"], Some("write `sni = [\"a.example\", \"*.a.example\"]`")),
            (&["a.example", "*.a.example"], None),
            (&["x.a.example", "b.example"], None),
            (&["*.x.a.example"], None),
            (&[], None),
        ] {
            let said = check(&[rule(sni, MINT)]);
            match expected {
                Some(part) => assert!(said.as_ref().unwrap().contains(part), "{sni:?}: {said:?}"),
                None => assert_eq!(said, None, "{sni:?}"),
            }
        }
        // What is meant to pass unread is said.
        for other in [rule(&["a.example"], SandboxAction::Splice), rule(&[], MINT)] {
            assert_eq!(check(&[rule(&["*.a.example"], MINT), other]), None);
        }
        assert_eq!(check(&[rule(&["*.a.example"], SandboxAction::Splice)]), None);
        let rules = [rule(&["wm.example"], MINT)];
        let all = RunServing { lets_all_pass: true, ..serving(&list, &rules) };
        assert_eq!(all.check_rules(), Ok(()));
    }

    #[test]
    fn names_that_pass_unread_are_told() {
        let list = AllowList::read("a.example\nb.example:8443\nc.example:80").unwrap();
        let rules = [rule(&["a.example"], MINT)];
        assert_eq!(serving(&list, &rules).unread().as_deref(), Some("b.example"));
        assert_eq!(serving(&list, &[rule(&[], MINT)]).unread(), None);
        let many: String = (0..9).map(|number| format!("{number}.example\n")).collect();
        let many = AllowList::read(&many).unwrap();
        let said = serving(&many, &[]).unread().unwrap();
        assert!(
            said.starts_with("0.example, 1.example") && said.ends_with(" and 4 more"),
            "{said}"
        );
    }

    #[test]
    fn a_secret_needs_a_rule_that_mints_for_its_names() {
        let list = AllowList::read(".a.example\nb.example").unwrap();
        let rules = [rule(&["*.a.example"], MINT)];
        let serving = serving(&list, &rules);
        let check = |names: &[&str]| {
            let names = names.iter().map(|name| name.parse().unwrap()).collect();
            let placeholder = "EYELET_SECRET_GITHUB".parse().unwrap();
            let (methods, headers) = (Vec::new(), Vec::new());
            serving.check_secret(&SecretTerms { placeholder, names, methods, headers })
        };
        assert_eq!(check(&["api.a.example"]), Ok(Vec::new()));
        assert_eq!(check(&["*.a.example", "b.example"]), Ok(vec!["b.example".to_owned()]));
        for name in ["b.example", "a.example", "elsewhere.example"] {
            let fault = check(&[name]).unwrap_err();
            assert!(fault.contains(name) && fault.contains("EYELET_SECRET_GITHUB"), "{fault}");
        }
    }
}
