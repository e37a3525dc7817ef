//! The projects of a shared edge: who has which name, and the rules of all.

use std::collections::BTreeSet;
use std::mem;
use std::net::SocketAddr;
use std::path::Path;
use std::rc::Rc;

use super::message::{Joining, ListedSite, ProjectKind};
use crate::command::run::plan::{OtherNames, PlannedRule, url};

/// Names of all projects together.
const NAMES_MAX: usize = 1000;

/// A project that is served.
#[derive(Clone, Debug)]
pub(super) struct Project {
    /// The number of its connection.
    pub(super) id: u64,
    pub(super) pid: u32,
    pub(super) joining: Rc<Joining>,
    /// Its rules, with the upstreams of now.
    pub(super) rules: Vec<PlannedRule>,
}

impl Project {
    /// True if a word of this line is an upstream of it, as the configuration writes it.
    pub(super) fn has_upstream_in(&self, line: &str) -> bool {
        let is_one = |word: &str, upstream: &str| {
            word == upstream || word.split_once("://").is_some_and(|(_, rest)| rest == upstream)
        };
        let is_own = |word: &str| self.rules.iter().any(|rule| is_one(word, &rule.site.upstream));
        line.split_whitespace().any(is_own)
    }
}

/// All projects, the oldest first.
#[derive(Clone, Debug, Default)]
pub(super) struct Projects(Vec<Project>);

impl Projects {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Project> {
        self.0.iter()
    }

    /// Adds a project.
    ///
    /// # Errors
    /// A line that says who has its name.
    pub(super) fn add(&mut self, (id, pid): (u64, u32), joining: Joining) -> Result<(), String> {
        if joining.rules.is_empty() {
            return Err("it has no name".into());
        }
        let known: usize = self.0.iter().map(|project| project.rules.len()).sum();
        if known + joining.rules.len() > NAMES_MAX {
            return Err(format!(
                "the shared edge has {known} names, and takes {NAMES_MAX} at most"
            ));
        }
        for rule in &joining.rules {
            let name = &rule.site.name;
            if let Some(owner) = self.owner(name) {
                let folder = owner.joining.folder.display();
                return Err(match owner.joining.kind {
                    ProjectKind::Background => format!(
                        "{name} is taken by an `eyelet proxy --background` that was started in \
                         {folder}: `eyelet stop {name}` ends it"
                    ),
                    _ => {
                        let pid = owner.pid;
                        format!(
                            "{name} is taken by process {pid} in {folder}: choose another name \
                             (--name), or end it with `eyelet stop {name}`"
                        )
                    }
                });
            }
        }
        let rules = joining.rules.clone();
        self.0.push(Project { id, pid, joining: joining.into(), rules });
        Ok(())
    }

    /// The project that has this name.
    pub(super) fn owner(&self, name: &str) -> Option<&Project> {
        self.0.iter().find(|project| project.rules.iter().any(|rule| rule.site.name == name))
    }

    /// The project of this connection.
    pub(super) fn of_connection(&self, id: u64) -> Option<&Project> {
        self.0.iter().find(|project| project.id == id)
    }

    /// Removes a project. Returns whether it was there.
    pub(super) fn remove(&mut self, id: u64) -> bool {
        let before = self.0.len();
        self.0.retain(|project| project.id != id);
        self.0.len() < before
    }

    /// Leads the sites of a project there. Returns whether that is another place.
    pub(super) fn lead_to(&mut self, id: u64, upstream: &str) -> bool {
        let mut changes = false;
        for project in self.0.iter_mut().filter(|project| project.id == id) {
            for rule in &mut project.rules {
                let earlier = mem::replace(&mut rule.site.upstream, upstream.to_owned());
                changes |= earlier != upstream;
            }
        }
        changes
    }

    /// The rules of all. The oldest project that wants them has `localhost` and clients without a
    /// name, unless a site has that name.
    pub(super) fn rules(&self) -> Vec<PlannedRule> {
        let mut rules: Vec<PlannedRule> =
            self.0.iter().flat_map(|project| project.rules.iter().cloned()).collect();
        let mut is_taken = rules.iter().any(|rule| rule.site.name == "localhost");
        for rule in &mut rules {
            let wants = rule.others == OtherNames::Nameless;
            if !wants || is_taken && rule.site.name != "localhost" {
                rule.others = OtherNames::Nothing;
            }
            is_taken |= wants;
        }
        rules
    }

    /// Names that the local authority may sign beyond what each one may.
    pub(super) fn permits(&self) -> BTreeSet<String> {
        self.0.iter().flat_map(|project| project.joining.permits.iter().cloned()).collect()
    }

    /// True if an application that speaks HTTP is where its project says.
    pub(super) fn has_http(&self) -> bool {
        let is_http = |project: &Project| project.rules.iter().any(|rule| !rule.options.tcp);
        self.0.iter().any(is_http)
    }

    pub(super) fn listed(&self, address: SocketAddr) -> Vec<ListedSite> {
        let site = |project: &Project, rule: &PlannedRule| ListedSite {
            url: url(rule, address),
            upstream: rule.site.upstream.clone(),
            pid: (project.joining.kind != ProjectKind::Background).then_some(project.pid),
            folder: project.joining.folder.clone(),
        };
        let of_project = |project: &Project| -> Vec<ListedSite> {
            project.rules.iter().map(|rule| site(project, rule)).collect()
        };
        self.0.iter().flat_map(of_project).collect()
    }
}

impl ListedSite {
    /// The line of `eyelet list`.
    pub(super) fn line(&self) -> String {
        let folder = Path::display(&self.folder);
        let who = match self.pid {
            Some(pid) => format!("process {pid}"),
            None => "in the background".into(),
        };
        format!("{}  {}  {who}  {folder}\n", self.url, self.upstream)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use clap::Parser;

    use super::*;
    use crate::command::run::args::ProxyArgs;
    use crate::command::run::plan::rules_of_proxy;

    #[derive(Parser)]
    struct Typed {
        #[command(flatten)]
        proxy: ProxyArgs,
    }

    fn joining(sites: &str, kind: ProjectKind) -> Joining {
        let typed = Typed::parse_from(["proxy"].into_iter().chain(sites.split(' ')));
        let rules = rules_of_proxy(&typed.proxy);
        let authority = "/ca".into();
        Joining {
            folder: "/a".into(),
            authority,
            rules,
            permits: Vec::new(),
            kept: Vec::new(),
            kind,
        }
    }

    fn others(projects: &Projects) -> Vec<(String, bool)> {
        let rules = projects.rules().into_iter();
        rules.map(|rule| (rule.site.name, rule.others == OtherNames::Nameless)).collect()
    }

    #[test]
    fn the_oldest_that_wants_them_has_clients_without_a_name() {
        let mut projects = Projects::default();
        let add = |projects: &mut Projects, id, sites| {
            projects.add((id, 7), joining(sites, ProjectKind::Proxy)).unwrap();
        };
        add(&mut projects, 1, "a.test=127.0.0.1:1 b.test=127.0.0.1:2");
        add(&mut projects, 2, "c.test=127.0.0.1:3");
        add(&mut projects, 3, "d.test=127.0.0.1:4");
        let named = |names: [(&str, bool); 4]| names.map(|(name, is)| (name.to_owned(), is));
        let all = [("a.test", false), ("b.test", false), ("c.test", true), ("d.test", false)];
        assert_eq!(others(&projects), named(all));
        assert!(projects.remove(2) && !projects.remove(2));
        assert_eq!(others(&projects)[2], ("d.test".into(), true));
        add(&mut projects, 4, "localhost=127.0.0.1:5");
        let last = &others(&projects)[2..];
        assert_eq!(last, [("d.test".into(), false), ("localhost".into(), true)]);
    }

    #[test]
    fn a_name_that_is_taken_is_refused_and_says_by_whom() {
        let mut projects = Projects::default();
        projects.add((1, 7), joining("a.test=127.0.0.1:1", ProjectKind::Proxy)).unwrap();
        projects.add((2, 8), joining("b.test=127.0.0.1:1", ProjectKind::Background)).unwrap();
        let refused = |sites| {
            let mut projects = projects.clone();
            projects.add((3, 9), joining(sites, ProjectKind::Proxy)).unwrap_err()
        };
        let said = refused("c.test=127.0.0.1:2 a.test=127.0.0.1:2");
        assert!(said.starts_with("a.test is taken by process 7 in /a: choose"), "{said}");
        let said = refused("b.test=127.0.0.1:2");
        assert!(said.contains("--background` that was started in /a: `eyelet stop b.test`"));
        assert_eq!(projects.rules().len(), 2);
        let many: Vec<String> = (0..999).map(|n| format!("n{n}.test=127.0.0.1:1")).collect();
        assert!(refused(&many.join(" ")).contains("1000 at most"));
    }

    #[test]
    fn a_line_about_an_upstream_is_its_projects() {
        let sites = "a.test=127.0.0.1:300 b.test=https://localhost:1";
        let mut projects = Projects::default();
        projects.add((1, 7), joining(sites, ProjectKind::Proxy)).unwrap();
        for (line, expected) in [
            ("WARN upstream http://127.0.0.1:300 is down: refused", true),
            ("WARN upstream https://localhost:1 is up again after 1.0 s", true),
            ("WARN upstream http://127.0.0.1:3000 is down: refused", false),
            ("WARN out of descriptors", false),
        ] {
            assert_eq!(projects.iter().next().unwrap().has_upstream_in(line), expected, "{line}");
        }
    }

    #[test]
    fn only_the_sites_of_the_project_are_led_elsewhere() {
        let mut projects = Projects::default();
        projects.add((1, 7), joining("a.test=127.0.0.1:1", ProjectKind::Run)).unwrap();
        projects.add((2, 8), joining("b.test=127.0.0.1:1", ProjectKind::Run)).unwrap();
        assert!(projects.lead_to(2, "127.0.0.1:9") && !projects.lead_to(2, "127.0.0.1:9"));
        let listed = projects.listed(([127, 0, 0, 1], 8443).into());
        let lines: String = listed.iter().map(ListedSite::line).collect();
        let expected = "https://a.test:8443/  127.0.0.1:1  process 7  /a\n\
                        https://b.test:8443/  127.0.0.1:9  process 8  /a\n";
        assert_eq!(lines, expected);
    }
}
