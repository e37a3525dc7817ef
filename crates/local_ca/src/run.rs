//! The authority of one run of a sandbox: its key is made for the run, and is never written.

use std::time::{Duration, SystemTime};

use eyelet_config::RunAuthority;
use rcgen::{
    BasicConstraints, CertificateParams, CidrSubnet, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, GeneralSubtree, IsCa, KeyUsagePurpose, NameConstraints,
};

use crate::authority::{BACKDATED, id, library, serial};
use crate::{LeafKey, LocalCaError};

/// The time for which it is valid: longer than a run.
const LIFETIME: Duration = Duration::from_hours(365 * 24);

/// Makes an authority. It may sign these names, all below them, and no address (RFC 5280 section
/// 4.2.1.10). `None`: any name.
///
/// # Errors
/// [`LocalCaError::Library`].
pub fn run_authority(names: Option<&[String]>) -> Result<RunAuthority, LocalCaError> {
    let key = LeafKey::generate()?;
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, format!("Eyelet sandbox {}", id(&key)));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params.name_constraints = names.map(constraints);
    params.serial_number = Some(serial()?);
    let now = SystemTime::now();
    params.not_before = (now - BACKDATED).into();
    params.not_after = (now + LIFETIME).into();
    let certificate = params.self_signed(&key).map_err(library)?;
    let (pem, certificate) = (certificate.pem(), certificate.der().clone());
    Ok(RunAuthority { certificate, pem, key: key.der() })
}

fn constraints(names: &[String]) -> NameConstraints {
    let all = [CidrSubnet::V4([0; 4], [0; 4]), CidrSubnet::V6([0; 16], [0; 16])];
    NameConstraints {
        permitted_subtrees: names.iter().cloned().map(GeneralSubtree::DnsName).collect(),
        excluded_subtrees: all.map(GeneralSubtree::IpAddress).into(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::process::Command;

    use rcgen::KeyPair;

    use super::*;
    use crate::MintAuthority;

    /// Returns what openssl says of a certificate for this name, which an authority for `a.example`
    /// minted.
    fn verified(name: &str) -> Option<String> {
        let run = run_authority(Some(&["a.example".to_owned()])).unwrap();
        let origin = CertificateParams::new(vec![name.to_owned()]).unwrap();
        let origin = origin.self_signed(&KeyPair::generate().unwrap()).unwrap();
        let authority = MintAuthority::new(&run.certificate, &run.key).unwrap();
        let minted = authority.mint(origin.der(), &LeafKey::generate().unwrap()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("ca.pem"), &run.pem).unwrap();
        std::fs::write(folder.path().join("leaf.der"), &minted).unwrap();
        let convert = "openssl x509 -inform der -in leaf.der -out leaf.pem && openssl verify \
            -no_check_time -CAfile ca.pem leaf.pem 2>&1";
        let said =
            Command::new("sh").args(["-c", convert]).current_dir(folder.path()).output().ok()?;
        Some(String::from_utf8_lossy(&said.stdout).into_owned()).filter(|said| !said.is_empty())
    }

    #[test]
    fn a_client_takes_no_other_name_from_it() {
        // Without openssl here nobody can say.
        let (Some(own), Some(below)) = (verified("a.example"), verified("x.a.example")) else {
            return;
        };
        assert!(own.contains("leaf.pem: OK") && below.contains("leaf.pem: OK"), "{own}{below}");
        for name in ["b.example", "example", "ba.example", "192.0.2.1", "2001:db8::1"] {
            let said = verified(name).unwrap();
            assert!(said.contains("subtree violation"), "{name}: {said}");
        }
    }
}
