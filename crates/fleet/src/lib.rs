//! The values that the edges of a fleet share: named values in a store, sealed with the fleet's
//! secret, made by whoever comes first. The store's atomic operations decide; there is no consensus
//! of our own. No TLS, no connections of clients. Every call blocks, for a bounded time: it is for
//! a thread of its own.

#![forbid(unsafe_code)]
#![allow(missing_docs)] // only the workspace uses it

mod folder;
pub mod period_keys;
#[cfg(any(test, fuzzing))]
pub mod properties;
mod redis;
pub mod sealed;

use std::io;
use std::time::Duration;

use eyelet_config::{FleetSettings, StoreAddress, fleet_secret};
use zeroize::Zeroizing;

use folder::FolderStore;
use redis::RedisStore;
use sealed::{OpenError, Sealer};

/// Bytes of a sealed value. Anything larger in the store is not ours.
const VALUE_BYTES_MAX: usize = 64 << 10;

/// The reason why a value cannot be had. It says what to do.
#[derive(Debug, thiserror::Error)]
pub enum FleetError {
    /// The secret cannot be read.
    #[error("{0}")]
    Secret(String),
    /// The library cannot derive a key or seal.
    #[error("the cryptographic library fails")]
    Library,
    /// The value opens, and is not what its name says.
    #[error(
        "the value {0:?} in the store is of another version of Eyelet: have all edges of the fleet \
         run one version, or remove that value"
    )]
    Foreign(String),
    /// The store does not answer, or refuses.
    #[error("the store {store} cannot be used: {why}")]
    Store {
        /// Its address, without a password.
        store: String,
        /// The error of the system or of the store.
        why: String,
    },
    /// The value is there, and does not open.
    #[error(
        "the value {name:?} in the store {store} does not open: {why}; give all edges of the fleet \
         the same `secret_file`, or remove that value"
    )]
    Sealed {
        /// The store's address, without a password.
        store: String,
        /// The value's name.
        name: String,
        /// The fault of it.
        why: OpenError,
    },
}

/// The values that a fleet shares.
pub struct Fleet {
    store: Store,
    address: String,
    sealer: Sealer,
    id: [u8; 16],
}

/// The store of the values.
enum Store {
    Folder(FolderStore),
    Redis(Box<RedisStore>),
}

/// The reason why a store could not answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StoreError {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("{0}")]
    Redis(#[from] ::redis::RedisError),
    #[error("{0}")]
    Value(&'static str),
}

impl Fleet {
    /// Reads the secret. The store is not needed yet.
    ///
    /// # Errors
    /// If the secret or the CA certificates cannot be read.
    pub fn open(fleet: &FleetSettings) -> Result<Self, FleetError> {
        let secret = fleet_secret(&fleet.secret_file).map_err(FleetError::Secret)?;
        let address = fleet.store.to_string();
        let sealer = Sealer::new(&secret).map_err(|_| FleetError::Library)?;
        let id = sealed::id(&secret, &address).map_err(|_| FleetError::Library)?;
        let store = match &fleet.store {
            StoreAddress::Folder(folder) => Ok(Store::Folder(FolderStore::new(folder))),
            StoreAddress::Redis(redis) => {
                RedisStore::new(redis).map(|redis| Store::Redis(Box::new(redis)))
            }
        };
        match store {
            Ok(store) => Ok(Self { store, address, sealer, id }),
            Err(why) => Err(FleetError::Store { store: address, why: why.to_string() }),
        }
    }

    /// Stands for the store and the secret: another store or another secret is another fleet.
    pub fn id(&self) -> [u8; 16] {
        self.id
    }

    /// The value with this name, if there is one.
    pub fn get(&mut self, name: &str) -> Result<Option<Zeroizing<Vec<u8>>>, FleetError> {
        let read = match &mut self.store {
            Store::Folder(folder) => folder.get(name),
            Store::Redis(redis) => redis.get(name),
        };
        let sealed = read.map_err(|why| self.store_error(&why))?;
        sealed.map(|sealed| self.opened(name, &sealed)).transpose()
    }

    /// Stores a value if there is none with this name. Returns the one that is there then, which
    /// another edge may have made. The store forgets it after `lifetime`. A name that is used again
    /// after that may be lost once: see `sweep`.
    pub fn put_if_absent(
        &mut self,
        name: &str,
        value: &[u8],
        lifetime: Duration,
    ) -> Result<Zeroizing<Vec<u8>>, FleetError> {
        let sealed = self.sealer.seal(name, value).map_err(|_| FleetError::Library)?;
        let put = match &mut self.store {
            Store::Folder(folder) => folder.put_if_absent(name, &sealed, lifetime),
            Store::Redis(redis) => redis.put_if_absent(name, &sealed, lifetime),
        };
        put.map_err(|why| self.store_error(&why))?;
        // Read back also if it is ours: then it is certainly what others read.
        match self.get(name)? {
            Some(value) => Ok(value),
            None => Err(self.store_error(&StoreError::Value("it lost what was just written"))),
        }
    }

    /// Stores a value in the place of the one with this name. The store forgets it after
    /// `lifetime`.
    pub fn put(&mut self, name: &str, value: &[u8], lifetime: Duration) -> Result<(), FleetError> {
        let sealed = self.sealer.seal(name, value).map_err(|_| FleetError::Library)?;
        let put = match &mut self.store {
            Store::Folder(folder) => folder.put(name, &sealed, lifetime),
            Store::Redis(redis) => redis.put(name, &sealed, lifetime),
        };
        put.map_err(|why| self.store_error(&why))
    }

    /// Removes a value. A missing one is no error.
    pub fn remove(&mut self, name: &str) -> Result<(), FleetError> {
        let removed = match &mut self.store {
            Store::Folder(folder) => folder.remove(name),
            Store::Redis(redis) => redis.remove(name),
        };
        removed.map_err(|why| self.store_error(&why))
    }

    fn opened(&self, name: &str, sealed: &[u8]) -> Result<Zeroizing<Vec<u8>>, FleetError> {
        self.sealer.open(name, sealed).map_err(|why| self.sealed_error(name, why))
    }

    fn store_error(&self, why: &StoreError) -> FleetError {
        FleetError::Store { store: self.address.clone(), why: why.to_string() }
    }

    fn sealed_error(&self, name: &str, why: OpenError) -> FleetError {
        FleetError::Sealed { store: self.address.clone(), name: name.to_owned(), why }
    }
}

#[cfg(test)]
mod tests;
