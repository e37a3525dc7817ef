//! The stores that trust the authority: the system's store of certificates, and the databases of
//! NSS that Chromium and Firefox read. Installing, removing, and words about both.

mod change;
mod nss;
mod system;

use std::fmt::Write as _;
use std::path::PathBuf;

use change::Outcome;
pub use change::TrustChange;
use eyelet_pki::certificate::date;

use crate::{Authority, folder_option, shell_word};

/// The places in which stores are looked for.
#[derive(Clone, Debug)]
pub struct Places {
    /// The root of the file system. `None`: the system's store is left alone (`--user`).
    pub root: Option<PathBuf>,
    /// The user's folder. `None`: there are no databases of the user.
    pub home: Option<PathBuf>,
    /// True if the system's store may be written.
    pub is_root: bool,
}

impl Places {
    /// The places of this process.
    pub fn here() -> Self {
        let home = std::env::var_os("HOME").map(PathBuf::from);
        let is_root = eyelet_sys::process::user() == 0;
        Self { root: Some("/".into()), home: home.filter(|home| home.is_absolute()), is_root }
    }
}

/// A store of trusted certificates.
#[derive(Clone, Debug)]
enum Store {
    System(system::SystemStore),
    Nss(nss::Database),
}

/// The text for the user, and whether nothing is left to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrustReport {
    /// Lines.
    pub text: String,
    /// True if everything that was asked for is done.
    pub is_complete: bool,
}

/// Says what the authority is, and who trusts it.
pub fn show(authority: &Authority, places: &Places) -> TrustReport {
    let mut text = about(authority);
    let stores = stores(places);
    let trusts = stores.iter().map(|store| match store.is_installed(authority) {
        true => ("trusted by", store),
        false => ("not trusted by", store),
    });
    trusts.for_each(|(trust, store)| line(&mut text, trust, store));
    if stores.is_empty() {
        text.push_str("  no store of certificates was found\n");
    }
    let is_complete = stores.iter().all(|store| store.is_installed(authority));
    if !is_complete {
        let options = options(authority, places);
        let of_root = stores.iter().any(|store| match store {
            Store::System(_) => !places.is_root && !store.is_installed(authority),
            Store::Nss(_) => false,
        });
        let what = match of_root {
            true => {
                "makes these trust it, and prints the commands by which root has the system's \
                 store trust it"
            }
            false => "makes all of these trust it",
        };
        let _ = writeln!(text, "\neyelet trust --install{options} {what}.");
    }
    text += missing_tool();
    text += &others(authority, places);
    TrustReport { text, is_complete: true }
}

/// A store of certificates, in words, and whether it trusts the authority.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreTrust {
    /// The place of the store.
    pub store: String,
    /// It has the authority.
    pub is_trusted: bool,
    /// The commands by which root has it trust the authority. Empty: this user may.
    pub of_root: Vec<String>,
}

/// The stores that are there.
pub fn look(authority: &Authority, places: &Places) -> Vec<StoreTrust> {
    let trust = |store: &Store| StoreTrust {
        store: store.to_string(),
        is_trusted: store.is_installed(authority),
        of_root: match store {
            Store::System(system) if !places.is_root => {
                system.commands(authority, TrustChange::Install)
            }
            Store::System(_) | Store::Nss(_) => Vec::new(),
        },
    };
    stores(places).iter().map(trust).collect()
}

/// The stores in which an authority would be installed, as lines.
pub fn stores_there(places: &Places) -> String {
    let stores = stores_for(places, TrustChange::Install);
    let lines: String = stores.iter().map(|store| format!("  {store}\n")).collect();
    lines + missing_tool()
}

/// True if databases of NSS can be read.
pub fn has_nss_tool() -> bool {
    nss::has_tool()
}

/// Installs the authority in each store, or removes it, and says what was done.
pub fn change(authority: &Authority, places: &Places, change: TrustChange) -> TrustReport {
    let mut text = about(authority);
    let mut commands = Vec::new();
    let mut is_complete = true;
    for store in stores_for(places, change) {
        let wanted = change == TrustChange::Install;
        let outcome = match store.is_installed(authority) == wanted {
            true => Outcome::Already,
            false => store.change(authority, places, change),
        };
        is_complete &= matches!(outcome, Outcome::Done | Outcome::Already);
        let said = match (&outcome, change) {
            (Outcome::Done, TrustChange::Install) => "now trusted by",
            (Outcome::Done, TrustChange::Remove) => "removed from",
            (Outcome::Already, TrustChange::Install) => "trusted before by",
            (Outcome::Already, TrustChange::Remove) => "not in",
            (Outcome::NeedsRoot(_), _) => "needs root:",
            (Outcome::Failed(_), _) => "FAILED:",
        };
        line(&mut text, said, &store);
        match outcome {
            Outcome::NeedsRoot(of_root) => commands.extend(of_root),
            Outcome::Failed(why) => _ = writeln!(text, "      {why}"),
            Outcome::Done | Outcome::Already => {}
        }
    }
    if !commands.is_empty() {
        let _ = writeln!(text, "\nThe system's store belongs to root. Run:");
        commands.iter().for_each(|command| _ = writeln!(text, "  {command}"));
    }
    text += missing_tool();
    match change {
        TrustChange::Install => {
            text += &others(authority, places);
            let options = options(authority, places);
            let _ = writeln!(text, "\nTo undo all of this: eyelet trust --remove{options}");
        }
        TrustChange::Remove => {
            let folder = shell_word(&authority.folder);
            let _ = writeln!(text, "\nIts key is still in {folder}. To destroy it: rm -r {folder}");
        }
    }
    TrustReport { text, is_complete }
}

/// Returns the options of `eyelet trust` for this authority and these stores, with a blank before
/// them.
fn options(authority: &Authority, places: &Places) -> String {
    let user = if places.root.is_none() { " --user" } else { "" };
    folder_option(&authority.folder) + user
}

fn about(authority: &Authority) -> String {
    let permitted = match &authority.permitted {
        Some(permitted) => permitted.to_string(),
        None => "anything: whoever has its key can be any server to you".to_owned(),
    };
    format!(
        "Eyelet local CA {}: {}\n  valid to {}; may sign {permitted}\n\n",
        authority.id(),
        authority.certificate_path().display(),
        date(authority.validity.1)
    )
}

fn line(text: &mut String, said: &str, store: &Store) {
    // Writing to a String cannot fail.
    let _ = writeln!(text, "  {said:<17} {store}");
}

/// The stores that are there.
fn stores(places: &Places) -> Vec<Store> {
    let system = places.root.as_deref().and_then(system::find).map(Store::System);
    let home = places.home.as_deref().filter(|_| nss::has_tool());
    let databases = home.map(nss::databases).unwrap_or_default().into_iter();
    system.into_iter().chain(databases.map(Store::Nss)).collect()
}

/// Returns the stores for a change. Chromium's database is made where it is missing: it makes it at
/// its first start only.
fn stores_for(places: &Places, change: TrustChange) -> Vec<Store> {
    let mut stores = stores(places);
    let of_chromium = places.home.as_deref().map(nss::of_chromium);
    if let Some(missing) = of_chromium.filter(|database| !database.exists())
        && change == TrustChange::Install
        && nss::has_tool()
    {
        stores.push(Store::Nss(missing));
    }
    stores
}

impl Store {
    fn is_installed(&self, authority: &Authority) -> bool {
        match self {
            Self::System(store) => store.is_installed(authority),
            Self::Nss(database) => database.is_installed(authority),
        }
    }

    fn change(&self, authority: &Authority, places: &Places, change: TrustChange) -> Outcome {
        match self {
            Self::System(store) => store.change(authority, change, places.is_root),
            Self::Nss(database) => database.change(authority, change),
        }
    }
}

impl std::fmt::Display for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::System(store) => store.fmt(f),
            Self::Nss(database) => database.fmt(f),
        }
    }
}

fn missing_tool() -> &'static str {
    match nss::has_tool() {
        true => "",
        false => {
            "\nFor Chromium and Firefox the program certutil is needed: \
             apt install libnss3-tools, dnf install nss-tools, or pacman -S nss\n"
        }
    }
}

/// Programs with certificates of their own.
fn others(authority: &Authority, places: &Places) -> String {
    let certificate = authority.certificate_path();
    let certificate = shell_word(&certificate);
    let system = places.root.as_deref().and_then(system::find);
    let bundle = system.and_then(|store| store.bundle());
    let python = match bundle {
        Some(bundle) => format!(
            "export SSL_CERT_FILE={0} REQUESTS_CA_BUNDLE={0}  # once the system trusts it",
            shell_word(&bundle)
        ),
        None => format!("export REQUESTS_CA_BUNDLE={certificate}  # trusts nothing else then"),
    };
    format!(
        "\nPrograms with certificates of their own:\n  \
         Node    export NODE_EXTRA_CA_CERTS={certificate}\n  \
         Python  {python}\n  \
         Java    keytool -importcert -cacerts -noprompt -alias eyelet-{id} -file {certificate}\n",
        id = authority.id()
    )
}
