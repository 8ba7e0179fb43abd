//! Signed tokens, the keys that sign them, and the files of both.
//!
//! A signed token is a [PASETO](https://github.com/paseto-standard/paseto-spec)
//! `v4.public`: Ed25519 over claims in JSON, with the id of the key in its footer.

use std::fmt::Write as _;

use pasetors::Public;
use pasetors::keys::{AsymmetricKeyPair, AsymmetricPublicKey, AsymmetricSecretKey, Generate};
use pasetors::token::UntrustedToken;
use pasetors::version4::{PublicToken, V4};
use serde::{Deserialize, Serialize};

use super::{Grant, JobPattern};
use crate::name::Name;
use crate::token::{FILE_BYTES_MAX, TOKEN_BYTES_MAX};

/// How every signed token begins.
const HEADER: &str = "v4.public.";

/// The first word of a file with a signing key.
const SIGNING_KEY: &str = "holdfast-signing-key";

/// The first word of a line with a public key.
const PUBLIC_KEY: &str = "holdfast-token-key";

/// Bytes of a private key, its public half included, and of a public one.
const SECRET_BYTES: usize = 64;
const PUBLIC_BYTES: usize = 32;

/// Most public keys in one file: an old one, a new one, and room for some teams.
pub const KEYS_MAX: usize = 16;

/// What a signed token says. Read strictly: a restriction that this version does not
/// know must not be ignored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Claims {
    /// Its id, by which it is revoked.
    pub id: Name,
    /// Whose it is, for people.
    pub name: Name,
    /// Its role, maybe one of a later version.
    pub role: String,
    /// Patterns of the jobs that a token of the role `job` is for; empty for other roles.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub jobs: Vec<JobPattern>,
    /// When it was made, in milliseconds since 1970, UTC: it is not valid before.
    pub made_at_ms: u64,
    /// When it expires, likewise.
    pub expires_at_ms: u64,
}

impl Claims {
    /// What it grants; the error says why nothing.
    pub fn grant(&self) -> Result<Grant, String> {
        let role = self.role.parse().map_err(|error: super::RoleError| error.to_string())?;
        Grant::new(role, self.jobs.clone()).map_err(|error| error.to_string())
    }
}

#[derive(Serialize, Deserialize)]
struct Footer {
    kid: Name,
}

/// Whether a text means to be a signed token.
pub fn is_signed(text: &[u8]) -> bool {
    text.starts_with(HEADER.as_bytes())
}

/// A new id of a token: 64 random bits, from a key that nobody uses.
pub fn token_id() -> Result<Name, SigningKeyError> {
    let random = SigningKey::generate()?;
    let text = format!("t{}", hex(&random.public.public[..8]));
    Ok(text.parse().expect("letters and digits are a name"))
}

/// A signed token whose signature nobody has looked at yet.
pub struct SignedToken {
    token: UntrustedToken<Public, V4>,
    key: Name,
}

/// Why a token is not taken for what it says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum VerifyError {
    /// The key did not sign it.
    #[error("its signature is wrong: it was changed, or copied in part")]
    Signature,
    /// The key signed something else.
    #[error("it says something that this version does not know: a later version made it")]
    Claims,
}

impl SignedToken {
    /// Reads a text; none if it is no signed token.
    pub fn read(text: &str) -> Option<SignedToken> {
        let text = Some(text).filter(|text| text.len() <= TOKEN_BYTES_MAX)?;
        let token = UntrustedToken::<Public, V4>::try_from(text).ok()?;
        let Footer { kid } = serde_json::from_slice(token.untrusted_footer()).ok()?;
        Some(SignedToken { token, key: kid })
    }

    /// The key that is said to have signed it.
    pub fn key(&self) -> &Name {
        &self.key
    }

    /// What it says, before its signature is checked: to be shown, never to be obeyed.
    pub fn claims(&self) -> Option<Claims> {
        serde_json::from_slice(self.token.untrusted_payload()).ok()
    }

    /// What it says, if this is the key that signed it.
    pub fn verify(&self, key: &PublicKey) -> Result<Claims, VerifyError> {
        let public = AsymmetricPublicKey::<V4>::from(&key.public);
        let public = public.map_err(|_| VerifyError::Signature)?;
        let trusted = PublicToken::verify(&public, &self.token, None, None);
        let trusted = trusted.map_err(|_| VerifyError::Signature)?;
        serde_json::from_str(trusted.payload()).map_err(|_| VerifyError::Claims)
    }
}

/// The public half of a key: tokens that it signed are verified with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublicKey {
    id: Name,
    public: [u8; PUBLIC_BYTES],
}

impl PublicKey {
    fn new(public: [u8; PUBLIC_BYTES]) -> PublicKey {
        let id = format!("k{}", hex(&public[..4]));
        PublicKey { id: id.parse().expect("letters and digits are a name"), public }
    }

    /// The key's id: `k` and the first 8 hexadecimal digits of the key.
    pub fn id(&self) -> &Name {
        &self.id
    }

    /// The line of a file of public keys.
    pub fn to_line(&self) -> String {
        format!("{PUBLIC_KEY} {} {}\n", self.id, hex(&self.public))
    }
}

/// The public keys of a file; at least one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublicKeys(Vec<PublicKey>);

/// Why a file holds no public keys.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PublicKeysError {
    /// There is nothing in it.
    #[error(
        "it holds no public key; make one: `holdfast token keygen FILE`, which writes FILE.pub"
    )]
    Empty,
    /// There is too much in it.
    #[error("it is longer than {FILE_BYTES_MAX} bytes: it is not a file of public keys")]
    FileTooLong,
    /// There are too many.
    #[error("it holds more than {KEYS_MAX} keys: take out those that sign no token any more")]
    TooMany,
    /// A private key is in it.
    #[error(
        "line {line} is a private key, which belongs to no node: give it the file FILE.pub that `holdfast token keygen FILE` wrote"
    )]
    Private {
        /// The line, from 1.
        line: usize,
    },
    /// A line is something else.
    #[error(
        "line {line} is not a public key, or it is damaged: copy the file FILE.pub that `holdfast token keygen FILE` wrote again"
    )]
    Malformed {
        /// The line, from 1.
        line: usize,
    },
}

impl PublicKeys {
    /// Reads what lies in a file: a key on each line. Empty lines and lines that begin
    /// with `#` do not count.
    pub fn parse(file: &[u8]) -> Result<PublicKeys, PublicKeysError> {
        if file.len() as u64 > FILE_BYTES_MAX {
            return Err(PublicKeysError::FileTooLong);
        }
        let mut keys: Vec<PublicKey> = Vec::new();
        for (index, line) in file.split(|byte| *byte == b'\n').enumerate() {
            let (line, text) = (index + 1, line.trim_ascii());
            if text.is_empty() || text.starts_with(b"#") {
                continue;
            }
            let text = std::str::from_utf8(text).unwrap_or_default();
            let words: Vec<&str> = text.split_whitespace().collect();
            let key = match words[..] {
                [SIGNING_KEY, ..] => return Err(PublicKeysError::Private { line }),
                [PUBLIC_KEY, id, digits] => unhex(digits)
                    .map(PublicKey::new)
                    .filter(|key| key.id.as_str() == id && keys.iter().all(|k| k.id != key.id)),
                _ => None,
            };
            if keys.len() == KEYS_MAX {
                return Err(PublicKeysError::TooMany);
            }
            keys.push(key.ok_or(PublicKeysError::Malformed { line })?);
        }
        if keys.is_empty() { Err(PublicKeysError::Empty) } else { Ok(PublicKeys(keys)) }
    }

    /// The key with this id.
    pub fn get(&self, id: &Name) -> Option<&PublicKey> {
        self.0.iter().find(|key| key.id == *id)
    }

    /// All keys of the file, in its order.
    pub fn iter(&self) -> impl Iterator<Item = &PublicKey> {
        self.0.iter()
    }
}

/// A key that signs tokens. Never shown.
pub struct SigningKey {
    secret: AsymmetricSecretKey<V4>,
    public: PublicKey,
}

/// Why there is no signing key. Says what is wrong, never what is in a file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SigningKeyError {
    /// The system gave no random numbers.
    #[error("the system gave no random numbers")]
    NoRandom,
    /// A file holds something else.
    #[error("it holds no signing key; make one: `holdfast token keygen FILE`")]
    Invalid,
}

impl SigningKey {
    /// Makes a new key from the system's random numbers.
    pub fn generate() -> Result<SigningKey, SigningKeyError> {
        let pair = AsymmetricKeyPair::<V4>::generate().map_err(|_| SigningKeyError::NoRandom)?;
        SigningKey::of(pair.secret)
    }

    fn of(secret: AsymmetricSecretKey<V4>) -> Result<SigningKey, SigningKeyError> {
        let public = secret.as_bytes().get(SECRET_BYTES - PUBLIC_BYTES..);
        let public = public.and_then(|bytes| bytes.try_into().ok());
        let public = public.map(PublicKey::new).ok_or(SigningKeyError::Invalid)?;
        Ok(SigningKey { secret, public })
    }

    /// The public half of the key, which nodes verify tokens with.
    pub fn public(&self) -> &PublicKey {
        &self.public
    }

    /// As it lies in a file.
    pub fn to_text(&self) -> String {
        format!("{SIGNING_KEY} {} {}\n", self.public.id, hex(self.secret.as_bytes()))
    }

    /// Reads what [`SigningKey::to_text`] wrote.
    pub fn parse(text: &str) -> Result<SigningKey, SigningKeyError> {
        let words: Vec<&str> = text.split_whitespace().collect();
        let [SIGNING_KEY, id, digits] = words[..] else { return Err(SigningKeyError::Invalid) };
        let bytes: [u8; SECRET_BYTES] = unhex(digits).ok_or(SigningKeyError::Invalid)?;
        let secret = AsymmetricSecretKey::<V4>::from(&bytes);
        let key = SigningKey::of(secret.map_err(|_| SigningKeyError::Invalid)?)?;
        if key.public.id.as_str() == id { Ok(key) } else { Err(SigningKeyError::Invalid) }
    }

    /// Signs what a token says.
    pub fn sign(&self, claims: &Claims) -> Result<String, SigningKeyError> {
        let json = |value: serde_json::Result<Vec<u8>>| {
            value.expect("claims are made of strings and numbers, which JSON can hold")
        };
        let footer = json(serde_json::to_vec(&Footer { kid: self.public.id.clone() }));
        let claims = json(serde_json::to_vec(claims));
        let signed = PublicToken::sign(&self.secret, &claims, Some(&footer), None);
        signed.map_err(|_| SigningKeyError::Invalid)
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let written = write!(text, "{byte:02x}");
        debug_assert!(written.is_ok());
        text
    })
}

/// The bytes of exactly so many hexadecimal digits.
fn unhex<const N: usize>(digits: &str) -> Option<[u8; N]> {
    let digits = digits.as_bytes();
    if digits.len() != 2 * N || !digits.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claims() -> Claims {
        Claims {
            id: token_id().unwrap(),
            name: "team-a".parse().unwrap(),
            role: "job".to_owned(),
            jobs: vec!["llm-*".parse().unwrap()],
            made_at_ms: 1_000,
            expires_at_ms: 2_000,
        }
    }

    #[test]
    fn a_token_is_what_its_key_signed_and_nothing_else() {
        let (key, other) = (SigningKey::generate().unwrap(), SigningKey::generate().unwrap());
        let claims = claims();
        let text = key.sign(&claims).unwrap();
        assert!(is_signed(text.as_bytes()));
        let read = SignedToken::read(&text).unwrap();
        assert_eq!(read.key(), key.public().id());
        assert_eq!(read.verify(key.public()), Ok(claims));
        assert_eq!(read.verify(other.public()), Err(VerifyError::Signature));
        let verified =
            |text: &str| SignedToken::read(text).and_then(|read| read.verify(key.public()).ok());
        for at in 0..text.len() {
            let mut bytes = text.clone().into_bytes();
            bytes[at] = if bytes[at] == b'A' { b'B' } else { b'A' };
            assert_eq!(verified(&String::from_utf8(bytes).unwrap()), None, "changed at {at}");
            assert_eq!(verified(&text[..at]), None, "cut at {at}");
        }
        assert!(SignedToken::read(&format!("{HEADER}{}", "A".repeat(1 << 20))).is_none());
    }

    #[test]
    fn the_longest_token_has_room_in_a_file() {
        let long = |c: &str, n: usize| c.repeat(n);
        let jobs = vec![long("j", super::super::PATTERN_BYTES_MAX).parse().unwrap(); 8];
        let name = long("n", 128).parse().unwrap();
        let (made_at_ms, expires_at_ms) = (u64::MAX, u64::MAX);
        let claims = Claims { name, jobs, made_at_ms, expires_at_ms, ..claims() };
        let text = SigningKey::generate().unwrap().sign(&claims).unwrap();
        assert!(text.len() <= TOKEN_BYTES_MAX, "{}", text.len());
        crate::token::Tokens::parse(text.as_bytes()).unwrap();
    }

    #[test]
    fn what_a_later_version_grants_is_refused_and_not_taken_for_less() {
        let key = SigningKey::generate().unwrap();
        let mut later = serde_json::to_value(claims()).unwrap();
        later["only_from"] = "10.0.0.0/8".into();
        let later = serde_json::to_vec(&later).unwrap();
        let footer = serde_json::to_vec(&Footer { kid: key.public.id.clone() }).unwrap();
        let text = PublicToken::sign(&key.secret, &later, Some(&footer), None).unwrap();
        let read = SignedToken::read(&text).unwrap();
        assert_eq!(read.verify(key.public()), Err(VerifyError::Claims));
        let error = Claims { role: "auditor".to_owned(), ..claims() }.grant().unwrap_err();
        assert!(error.contains("auditor") && error.contains("this version"), "{error}");
        assert!(Claims { role: "peer".to_owned(), ..claims() }.grant().is_err());
    }

    #[test]
    fn a_signing_key_survives_its_file_and_other_files_are_refused() {
        let key = SigningKey::generate().unwrap();
        let text = key.to_text();
        let again = SigningKey::parse(&text).unwrap();
        assert_eq!(again.public(), key.public());
        let cut = &text[..text.len() - 3];
        for bad in ["", "token", cut, &text.replace(" k", " x"), "ü", &key.public().to_line()] {
            assert!(SigningKey::parse(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn public_keys_stand_one_a_line_and_no_private_one_among_them() {
        let (one, two) = (SigningKey::generate().unwrap(), SigningKey::generate().unwrap());
        let (first, second) = (one.public().to_line(), two.public().to_line());
        let keys = PublicKeys::parse(format!("# spring\n{first}\n{second}").as_bytes()).unwrap();
        assert_eq!(keys.get(two.public().id()), Some(two.public()));
        assert_eq!(keys.iter().count(), 2);
        let many = (0..=KEYS_MAX).map(|_| SigningKey::generate().unwrap().public().to_line());
        for (file, error) in [
            (String::new(), PublicKeysError::Empty),
            (format!("{first}{}", one.to_text()), PublicKeysError::Private { line: 2 }),
            (format!("{first}{first}"), PublicKeysError::Malformed { line: 2 }),
            (first[..first.len() - 4].to_owned(), PublicKeysError::Malformed { line: 1 }),
            ("some token".to_owned(), PublicKeysError::Malformed { line: 1 }),
            ("#".repeat(FILE_BYTES_MAX as usize + 1), PublicKeysError::FileTooLong),
            (many.collect(), PublicKeysError::TooMany),
        ] {
            assert_eq!(PublicKeys::parse(file.as_bytes()).unwrap_err(), error);
        }
    }
}
