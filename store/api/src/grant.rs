//! What a token lets its holder do, and the signed tokens that say it.
//!
//! A signed token is a [PASETO](https://github.com/paseto-standard/paseto-spec)
//! `v4.public`: Ed25519 over claims in JSON, with the id of the key in its footer.
//! Nodes know the public keys and the tokens that were granted; the private key stays
//! with whoever makes tokens.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::blob::Blob;
use crate::command::LogTime;
use crate::name::Name;

/// What a holder of a token is to the cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// A node: what is between nodes, and nothing else.
    Peer,
    /// Everything but what is between nodes.
    Admin,
    /// Sees everything, ends runs and processes, moves nodes and leadership.
    Operator,
    /// Sees and changes its own jobs.
    Job,
}

impl Role {
    /// All of them.
    pub const ALL: [Role; 4] = [Role::Peer, Role::Admin, Role::Operator, Role::Job];

    /// The role as it is written.
    pub fn as_str(self) -> &'static str {
        match self {
            Role::Peer => "peer",
            Role::Admin => "admin",
            Role::Operator => "operator",
            Role::Job => "job",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Why a text is no [`Role`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no role {0:?} in this version; the roles are admin, operator, job and peer")]
pub struct RoleError(String);

impl FromStr for Role {
    type Err = RoleError;

    fn from_str(text: &str) -> Result<Self, RoleError> {
        let role = Role::ALL.into_iter().find(|role| role.as_str() == text);
        role.ok_or_else(|| RoleError(text.chars().take(64).collect()))
    }
}

/// Longest pattern, in bytes.
pub const PATTERN_BYTES_MAX: usize = 128;

/// Most patterns of one token.
pub const PATTERNS_MAX: usize = 8;

/// Names of jobs: the characters of a [`Name`], and `*` for any characters.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(value_type = String))]
#[serde(try_from = "String", into = "String")]
pub struct JobPattern(String);

/// Why a text is no [`JobPattern`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no pattern of jobs: use 1 to {PATTERN_BYTES_MAX} letters, digits, '.', '_' and '-', and '*' for any of them"
)]
pub struct JobPatternError(String);

impl JobPattern {
    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether a job is among them.
    pub fn matches(&self, job: &Name) -> bool {
        let (pattern, name) = (self.0.as_bytes(), job.as_str().as_bytes());
        // The latest star, and how much of the name it takes: never more than
        // pattern times name in steps.
        let (mut p, mut n, mut star) = (0, 0, None);
        while n < name.len() {
            if pattern.get(p) == Some(&b'*') {
                star = Some((p, n));
                p += 1;
            } else if pattern.get(p) == Some(&name[n]) {
                (p, n) = (p + 1, n + 1);
            } else if let Some((at, taken)) = star {
                star = Some((at, taken + 1));
                (p, n) = (at + 1, taken + 1);
            } else {
                return false;
            }
        }
        pattern[p..].iter().all(|byte| *byte == b'*')
    }
}

impl TryFrom<String> for JobPattern {
    type Error = JobPatternError;

    fn try_from(text: String) -> Result<Self, JobPatternError> {
        let allowed = |b: u8| b.is_ascii_alphanumeric() || b"._-*".contains(&b);
        if (1..=PATTERN_BYTES_MAX).contains(&text.len()) && text.bytes().all(allowed) {
            Ok(JobPattern(text))
        } else {
            Err(JobPatternError(text.chars().take(PATTERN_BYTES_MAX).collect()))
        }
    }
}

impl FromStr for JobPattern {
    type Err = JobPatternError;

    fn from_str(text: &str) -> Result<Self, JobPatternError> {
        JobPattern::try_from(text.to_owned())
    }
}

impl From<JobPattern> for String {
    fn from(pattern: JobPattern) -> String {
        pattern.0
    }
}

impl fmt::Display for JobPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What a token was granted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Grant {
    /// Its role.
    pub role: Role,
    /// Its jobs; empty unless the role is `job`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub jobs: Vec<JobPattern>,
    /// When it expires, in milliseconds since 1970, UTC.
    pub expires_at_ms: u64,
}

impl Grant {
    /// Whether the roles and the patterns belong together.
    pub fn check(&self) -> Result<(), &'static str> {
        match self.role {
            Role::Job if self.jobs.is_empty() => Err("a token of role job names its jobs"),
            Role::Job if self.jobs.len() > PATTERNS_MAX => Err("a token names at most 8 patterns"),
            Role::Job => Ok(()),
            Role::Peer | Role::Admin | Role::Operator if !self.jobs.is_empty() => {
                Err("only a token of role job names jobs")
            }
            Role::Peer | Role::Admin | Role::Operator => Ok(()),
        }
    }
}

/// A key that tokens are signed by, as listed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TokenKeyInfo {
    /// Its id.
    pub key: Name,
    /// Its public half: 32 bytes.
    pub public: Blob,
    /// Log time since which it holds.
    pub since_ms: LogTime,
}

/// A token, as listed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TokenInfo {
    /// Its id.
    pub id: Name,
    /// What it was granted.
    #[serde(flatten)]
    pub grant: Grant,
    /// Whether it was revoked.
    pub revoked: bool,
}

/// The keys and tokens of a cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TokenList {
    /// In order of their ids.
    pub keys: Vec<TokenKeyInfo>,
    /// In order of their ids.
    pub tokens: Vec<TokenInfo>,
}

/// The cluster that tokens name: one that was restored from a backup takes those of
/// the cluster that was lost.
pub fn token_cluster(cluster_id: &str) -> &str {
    cluster_id.split("-restored-").next().unwrap_or(cluster_id)
}

#[cfg(feature = "tokens")]
pub use signed::{Claims, SigningKey, SigningKeyError, Unverified, is_signed};

#[cfg(feature = "tokens")]
mod signed {
    use pasetors::keys::{AsymmetricKeyPair, AsymmetricPublicKey, AsymmetricSecretKey, Generate};
    use pasetors::token::UntrustedToken;
    use pasetors::version4::{PublicToken, V4};
    use pasetors::{Public, errors};
    use serde::{Deserialize, Serialize};

    use super::Grant;
    use crate::blob::Blob;
    use crate::name::Name;
    use crate::secret_id::SecretId;

    /// How every signed token begins.
    const HEADER: &str = "v4.public.";

    /// What the first line of a file with a signing key begins with.
    const KEY_HEADER: &str = "holdfast-signing-key";

    /// What a signed token says.
    #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
    pub struct Claims {
        /// The cluster that it is for, see [`token_cluster`](super::token_cluster).
        pub cluster: String,
        /// Its id.
        pub id: Name,
        /// Its role, maybe one of tomorrow.
        pub role: String,
        /// Its jobs.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        pub jobs: Vec<super::JobPattern>,
        /// When it was made, in milliseconds since 1970, UTC.
        pub made_at_ms: u64,
        /// When it expires, likewise.
        pub expires_at_ms: u64,
    }

    impl Claims {
        /// The claims of a grant.
        pub fn of(cluster: &str, id: Name, grant: &Grant, made_at_ms: u64) -> Claims {
            let Grant { role, jobs, expires_at_ms } = grant.clone();
            let (cluster, role) = (cluster.to_owned(), role.as_str().to_owned());
            Claims { cluster, id, role, jobs, made_at_ms, expires_at_ms }
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

    /// A signed token whose signature nobody has looked at yet.
    pub struct Unverified {
        token: UntrustedToken<Public, V4>,
        key: Name,
    }

    impl Unverified {
        /// Reads a text; none if it is no signed token.
        pub fn read(text: &str) -> Option<Unverified> {
            let token = UntrustedToken::<Public, V4>::try_from(text).ok()?;
            let Footer { kid } = serde_json::from_slice(token.untrusted_footer()).ok()?;
            Some(Unverified { token, key: kid })
        }

        /// The key that is said to have signed it.
        pub fn key(&self) -> &Name {
            &self.key
        }

        /// What it says, if this is the key that signed it.
        pub fn verify(&self, public: &[u8]) -> Option<Claims> {
            let public = AsymmetricPublicKey::<V4>::from(public).ok()?;
            let trusted = PublicToken::verify(&public, &self.token, None, None).ok()?;
            serde_json::from_str(trusted.payload()).ok()
        }
    }

    /// The private half of a key, and its id. Never shown.
    pub struct SigningKey {
        id: Name,
        cluster: String,
        secret: AsymmetricSecretKey<V4>,
    }

    /// Why a file holds no signing key. Says what is wrong, never what is in it.
    #[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
    pub enum SigningKeyError {
        /// The system gave no random numbers.
        #[error("the system gave no random numbers")]
        NoRandom,
        /// It is something else.
        #[error("it holds no signing key; make one: `holdfast token key create FILE`")]
        Invalid,
    }

    impl From<errors::Error> for SigningKeyError {
        fn from(_: errors::Error) -> Self {
            SigningKeyError::Invalid
        }
    }

    impl SigningKey {
        /// A new one for a cluster.
        pub fn generate(cluster: &str) -> Result<SigningKey, SigningKeyError> {
            let pair =
                AsymmetricKeyPair::<V4>::generate().map_err(|_| SigningKeyError::NoRandom)?;
            let start: [u8; 4] = pair.public.as_bytes()[..4].try_into().expect("it has 32 bytes");
            let id = format!("k{:08x}", u32::from_be_bytes(start));
            let id = id.parse().expect("letters and digits are a name");
            Ok(SigningKey { id, cluster: cluster.to_owned(), secret: pair.secret })
        }

        /// Its id.
        pub fn id(&self) -> &Name {
            &self.id
        }

        /// The cluster that it signs for.
        pub fn cluster(&self) -> &str {
            &self.cluster
        }

        /// Its public half.
        pub fn public(&self) -> Blob {
            Blob::from(self.secret.as_bytes()[32..].to_vec())
        }

        /// As it lies in a file.
        pub fn to_text(&self) -> String {
            let bytes = self.secret.as_bytes();
            let secret: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            format!("{KEY_HEADER} {} {} {secret}\n", self.id, self.cluster)
        }

        /// Reads what [`SigningKey::to_text`] wrote.
        pub fn parse(text: &str) -> Result<SigningKey, SigningKeyError> {
            let words: Vec<&str> = text.split_whitespace().collect();
            let [KEY_HEADER, id, cluster, secret] = words[..] else {
                return Err(SigningKeyError::Invalid);
            };
            let id = id.parse().map_err(|_| SigningKeyError::Invalid)?;
            let halves = secret.split_at_checked(64).ok_or(SigningKeyError::Invalid)?;
            let (first, second) = halves;
            let mut bytes = Vec::with_capacity(64);
            for half in [first, second] {
                for digits in half.as_bytes().chunks(2) {
                    let digits =
                        std::str::from_utf8(digits).map_err(|_| SigningKeyError::Invalid)?;
                    let byte = u8::from_str_radix(digits, 16);
                    bytes.push(byte.map_err(|_| SigningKeyError::Invalid)?);
                }
            }
            let secret = AsymmetricSecretKey::<V4>::from(&bytes)?;
            Ok(SigningKey { id, cluster: cluster.to_owned(), secret })
        }

        /// Signs what a token says.
        pub fn sign(&self, claims: &Claims) -> Result<String, SigningKeyError> {
            let footer = Footer { kid: self.id.clone() };
            let json = |value: serde_json::Result<Vec<u8>>| {
                value.expect("claims are made of strings and numbers, which JSON can hold")
            };
            let footer = json(serde_json::to_vec(&footer));
            let claims = json(serde_json::to_vec(claims));
            Ok(PublicToken::sign(&self.secret, &claims, Some(&footer), None)?)
        }
    }

    /// A new id of a token.
    pub fn token_id(random: SecretId) -> Name {
        let text = format!("t{:012x}", random.to_u128() & 0xffff_ffff_ffff);
        text.parse().expect("letters and digits are a name")
    }

    #[cfg(test)]
    mod tests {
        use super::*;
        use crate::grant::Role;

        fn claims(key: &SigningKey) -> Claims {
            let jobs = vec!["llm-*".parse().unwrap()];
            let grant = Grant { role: Role::Job, jobs, expires_at_ms: 2_000 };
            Claims::of(key.cluster(), "t1".parse().unwrap(), &grant, 1_000)
        }

        #[test]
        fn a_token_is_what_its_key_signed_and_nothing_else() {
            let key = SigningKey::generate("c1").unwrap();
            let other = SigningKey::generate("c1").unwrap();
            let text = key.sign(&claims(&key)).unwrap();
            assert!(is_signed(text.as_bytes()));
            assert!(text.len() <= crate::token::TOKEN_BYTES_MAX, "{}", text.len());
            let read = Unverified::read(&text).unwrap();
            assert_eq!(read.key(), key.id());
            assert_eq!(read.verify(key.public().as_bytes()), Some(claims(&key)));
            assert_eq!(read.verify(other.public().as_bytes()), None);
            for at in 0..text.len() {
                let mut bytes = text.clone().into_bytes();
                bytes[at] = if bytes[at] == b'A' { b'B' } else { b'A' };
                let changed = String::from_utf8(bytes).unwrap();
                let verified = Unverified::read(&changed)
                    .and_then(|read| read.verify(key.public().as_bytes()));
                assert_eq!(verified, None, "changed at {at}");
                assert!(
                    Unverified::read(&text[..at])
                        .is_none_or(|cut| { cut.verify(key.public().as_bytes()).is_none() })
                );
            }
        }

        #[test]
        fn a_key_survives_its_file_and_other_files_are_refused() {
            let key = SigningKey::generate("c1").unwrap();
            let again = SigningKey::parse(&key.to_text()).unwrap();
            assert_eq!((again.id(), again.public()), (key.id(), key.public()));
            let text = key.to_text();
            for bad in ["", "token", &text[..text.len() - 3], &text.replace("c1", ""), "ü"] {
                assert!(SigningKey::parse(bad).is_err(), "{bad:?}");
            }
        }
    }
}

#[cfg(feature = "tokens")]
pub use signed::token_id;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_matches_what_its_stars_stand_for() {
        for (pattern, job, matches) in [
            ("*", "anything", true),
            ("llm-*", "llm-7b", true),
            ("llm-*", "llm-", true),
            ("llm-*", "llm", false),
            ("llm-*", "my-llm-7b", false),
            ("*-7b", "llm-7b", true),
            ("a*b*c", "a1b2c", true),
            ("a*b*c", "a1c2b", false),
            ("a**c", "ac", true),
            ("web", "web", true),
            ("web", "web2", false),
            ("*a*a*a*a*b", "aaaaaaaaaaaaaaaaaaaaaaaa", false),
        ] {
            let pattern: JobPattern = pattern.parse().unwrap();
            assert_eq!(pattern.matches(&job.parse().unwrap()), matches, "{pattern} {job}");
        }
    }

    #[test]
    fn what_is_no_pattern_or_role_is_refused_by_name() {
        for bad in ["", "a b", "a?", "[a]", "ü", &"x".repeat(PATTERN_BYTES_MAX + 1)] {
            assert!(bad.parse::<JobPattern>().is_err(), "{bad:?}");
        }
        let error = "auditor".parse::<Role>().unwrap_err().to_string();
        assert!(error.contains("auditor") && error.contains("operator"), "{error}");
        for role in Role::ALL {
            assert_eq!(role.as_str().parse(), Ok(role));
        }
    }

    #[test]
    fn a_restored_cluster_takes_the_tokens_of_the_one_that_was_lost() {
        assert_eq!(token_cluster("c-restored-0102"), "c");
        assert_eq!(token_cluster("c"), "c");
    }
}
