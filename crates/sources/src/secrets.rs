//! Values of secrets: read at the start and at a reload, and again when their files change or their
//! commands are due.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use eyelet_config::{SecretSettings, SecretSource, secret_of_file};
use eyelet_secrets::{SecretTerms, SecretValue, Secrets};
use eyelet_sys::file::Stamp;
use eyelet_sys::process::forbid_dumps;

use crate::command::output;

/// Reads the secrets of a configuration. A value that cannot be read stays the `earlier` one.
/// `None`: the configuration has none.
///
/// # Errors
/// A secret cannot be read, and there is no earlier value of it.
pub fn load(
    settings: &[SecretSettings],
    earlier: Option<&Secrets>,
) -> Result<Option<Arc<Secrets>>, String> {
    if settings.is_empty() {
        return Ok(None);
    }
    // Before there is one in memory: no other process reads it, and no core has it.
    forbid_dumps().map_err(|why| format!("secrets would be in cores: {why}"))?;
    let mut values = Vec::with_capacity(settings.len());
    for secret in settings {
        let placeholder = &secret.terms.placeholder;
        let known = earlier.and_then(|earlier| earlier.value(placeholder));
        let value = match (read(&secret.source), known) {
            (Ok(value), _) => Arc::new(value),
            (Err(fault), Some(known)) => {
                tracing::error!("{placeholder}: {fault}; its value stays the same");
                known
            }
            (Err(fault), None) => return Err(format!("{placeholder}: {fault}")),
        };
        values.push(value);
    }
    let terms: Vec<SecretTerms> = settings.iter().map(|secret| secret.terms.clone()).collect();
    let secrets = Secrets::new(terms, values.clone()).map_err(|why| why.to_string())?;
    for (secret, value) in settings.iter().zip(&values) {
        let checked = secrets.check(value);
        checked.map_err(|fault| format!("{}: {fault}", secret.terms.placeholder))?;
    }
    Ok(Some(Arc::new(secrets)))
}

/// Reads a secret.
fn read(source: &SecretSource) -> Result<SecretValue, String> {
    match source {
        SecretSource::File(path) | SecretSource::FileOnce(path) => secret_of_file(path),
        SecretSource::Command { words, .. } => {
            let fault = |fault| format!("the command {}: {fault}", shown(words));
            SecretValue::new(&output(words)?).map_err(fault)
        }
    }
}

/// The program of a command. Its arguments may say more than a log should know.
fn shown(words: &[String]) -> &str {
    words.first().map_or("", |program| program)
}

/// The state of each secret of what serves, in the order of the configuration.
#[derive(Default)]
pub struct SecretSources(Vec<State>);

/// The last reading of a secret.
enum State {
    /// Its file had this version. `None`: it is not known, or could not be used.
    File(Option<Stamp>),
    /// Its command is due then. `None`: only at a reload.
    Command(Option<Instant>),
    /// Its file is read no more.
    ReadOnce,
}

impl SecretSources {
    /// Those of a configuration that was just read.
    pub fn new(settings: &[SecretSettings]) -> Self {
        let states = settings.iter().map(|secret| match &secret.source {
            // What is in the file now may be newer than what was read.
            SecretSource::File(_) => State::File(None),
            SecretSource::FileOnce(_) => State::ReadOnce,
            SecretSource::Command { refresh, .. } => {
                State::Command(refresh.map(|refresh| Instant::now() + refresh))
            }
        });
        Self(states.collect())
    }

    /// The time at which the next command is due.
    pub fn next_due(&self) -> Option<Instant> {
        let due = self.0.iter().filter_map(|state| match state {
            State::File(_) | State::ReadOnce => None,
            State::Command(due) => *due,
        });
        due.min()
    }

    /// Reads what has changed or is due, unless its file `waits` for its writer. `note` gets the
    /// file or the program, and whether its value was replaced, or why it was not.
    pub fn look(
        &mut self,
        (settings, secrets): (&[SecretSettings], &Secrets),
        waits: impl Fn(&Path) -> bool,
        mut note: impl FnMut(&Path, Result<bool, String>),
    ) {
        for (nth, (secret, state)) in settings.iter().zip(&mut self.0).enumerate() {
            let renew = |source| {
                let value = read(source)?;
                secrets.check(&value).map_err(|fault| fault.to_string())?;
                Ok(secrets.replace(nth, value))
            };
            let named = |fault| format!("{}: {fault}", secret.terms.placeholder);
            match (&secret.source, state) {
                (SecretSource::File(path), State::File(known)) if !waits(path) => {
                    // Before it is read: a change meanwhile gives another stamp at the next look.
                    let stamp = Stamp::at(path);
                    if known.is_some_and(|known| known.is_same(stamp)) {
                        continue;
                    }
                    let renewed: Result<bool, String> = renew(&secret.source);
                    *known = renewed.is_ok().then_some(stamp);
                    note(path, renewed.map_err(named));
                }
                (SecretSource::Command { words, refresh }, State::Command(due))
                    if due.is_some_and(|due| due <= Instant::now()) =>
                {
                    note(Path::new(shown(words)), renew(&secret.source).map_err(named));
                    *due = refresh.map(|refresh| Instant::now() + refresh);
                }
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;
    use std::time::Duration;

    use super::*;

    const PLACEHOLDER: &str = "EYELET_SECRET_GITHUB";

    fn of(source: SecretSource) -> Vec<SecretSettings> {
        let terms = SecretTerms {
            placeholder: PLACEHOLDER.parse().unwrap(),
            names: vec!["a.example".parse().unwrap()],
            methods: Vec::new(),
            headers: Vec::new(),
        };
        vec![SecretSettings { terms, source }]
    }

    fn shows(secrets: &Secrets, text: &str) -> bool {
        let fields = http::HeaderMap::from_iter([(http::header::ETAG, text.parse().unwrap())]);
        secrets.reflected(&fields).is_some()
    }

    #[test]
    fn a_file_that_changes_is_read_again_and_a_bad_one_changes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("token");
        let write = |text: &str| {
            // Another file each time: a stamp of one that has just changed equals nothing.
            let beside = folder.path().join("beside");
            fs::write(&beside, text).unwrap();
            fs::set_permissions(&beside, Permissions::from_mode(0o600)).unwrap();
            fs::rename(&beside, &file).unwrap();
        };
        let settings = of(SecretSource::File(file.clone()));
        let absent = load(&settings, None).err().unwrap();
        assert!(absent.contains("cannot read"), "{absent}");
        write("first-value\n");
        let secrets = load(&settings, None).unwrap().unwrap();
        assert!(shows(&secrets, "first-value"));
        let dumpable = rustix::process::dumpable_behavior().unwrap();
        assert_eq!(dumpable, rustix::process::DumpableBehavior::NotDumpable);
        let mut sources = SecretSources::new(&settings);
        let mut look = |waits: bool| {
            let mut said = Vec::new();
            sources.look((&settings, &secrets), |_| waits, |_, read| said.push(read));
            said
        };
        assert_eq!(look(false), [Ok(false)]);
        write("second-value");
        assert_eq!(look(true), [], "somebody writes it");
        assert_eq!(look(false), [Ok(true)]);
        assert!(shows(&secrets, "second-value"));
        for (text, expected) in [
            ("", "it is empty"),
            ("two\nlines-of-it", "more than one line"),
            ("EYELET_SECRET_GITHUB", "it has a placeholder"),
        ] {
            write(text);
            let fault = look(false).remove(0).unwrap_err();
            assert!(fault.contains(PLACEHOLDER) && fault.contains(expected), "{fault}");
        }
        fs::set_permissions(&file, Permissions::from_mode(0o644)).unwrap();
        let fault = look(false).remove(0).unwrap_err();
        assert!(fault.contains("chmod 600"), "{fault}");
        fs::remove_file(&file).unwrap();
        assert!(look(false).remove(0).is_err());
        assert!(shows(&secrets, "second-value"));
        let kept = load(&settings, Some(&secrets)).unwrap().unwrap();
        assert!(shows(&kept, "second-value"), "a reload keeps the value");
    }

    #[test]
    fn a_file_that_is_read_once_may_change() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("token");
        fs::write(&file, "first-value").unwrap();
        fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
        let settings = of(SecretSource::FileOnce(file.clone()));
        let secrets = load(&settings, None).unwrap().unwrap();
        let mut sources = SecretSources::new(&settings);
        fs::write(&file, "second-value").unwrap();
        let mut said = Vec::new();
        sources.look((&settings, &secrets), |_| false, |_, read| said.push(read));
        assert_eq!((said, sources.next_due()), (Vec::new(), None));
        assert!(shows(&secrets, "first-value") && !shows(&secrets, "second-value"));
    }

    #[test]
    fn a_command_is_run_again_when_it_is_due() {
        let _starts = crate::command::STARTS.lock();
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("count");
        fs::write(&file, "value-0001\n").unwrap();
        let words = ["cat", file.to_str().unwrap()].map(str::to_owned).to_vec();
        let refresh = Some(Duration::ZERO);
        let settings = of(SecretSource::Command { words, refresh });
        let secrets = load(&settings, None).unwrap().unwrap();
        let mut sources = SecretSources::new(&settings);
        fs::write(&file, "value-0002\n").unwrap();
        assert!(sources.next_due().unwrap() <= Instant::now());
        let mut said = Vec::new();
        sources.look((&settings, &secrets), |_| false, |_, read| said.push(read));
        assert_eq!(said, [Ok(true)]);
        assert!(shows(&secrets, "value-0002"));
        let once = of(SecretSource::Command { words: vec!["true".into()], refresh: None });
        assert_eq!(SecretSources::new(&once).next_due(), None);
        assert!(load(&once, None).err().unwrap().contains("it is empty"));
    }
}
