//! Signed tokens as a node takes them: by its public keys, and by its clock.

use std::time::{Duration, UNIX_EPOCH};

use holdfast_api::grant::{PublicKeys, SignedToken};
use holdfast_api::{Code, Problem};
use http::HeaderValue;

use crate::principal::{HeldToken, Principal};

/// How much earlier than this node's clock says a token may have been made.
const CLOCK_SKEW_MS: u64 = 60_000;

/// The last millisecond that the formatter supports: of the year 9999.
const WRITTEN_MAX_MS: u64 = 253_402_300_799_000;

const ANOTHER: &str = "make another with `holdfast token create`";

/// Who holds a token; the error says why nobody.
pub(super) fn verify(keys: &PublicKeys, text: &str, now_ms: u64) -> Result<Principal, Problem> {
    let Some(token) = SignedToken::read(text) else {
        return refuse("the signed token is damaged, or too long: copy its file again".to_owned());
    };
    let Some(key) = keys.get(token.key()) else { return Err(unknown_key(token.key())) };
    let claims = match token.verify(key) {
        Ok(claims) => claims,
        Err(error) => return refuse(format!("the signed token: {error}; {ANOTHER}")),
    };
    let grant = match claims.grant() {
        Ok(grant) => grant,
        Err(error) => return refuse(format!("the signed token {}: {error}", claims.id)),
    };
    if claims.made_at_ms > now_ms.saturating_add(CLOCK_SKEW_MS) {
        return refuse(format!(
            "the token {} ({}) is not valid before {}, and this node's clock says {}: set the clock that is wrong",
            claims.id,
            claims.name,
            written(claims.made_at_ms),
            written(now_ms)
        ));
    }
    let mut authorization = match HeaderValue::try_from(format!("Bearer {text}")) {
        Ok(value) => value,
        Err(_) => return refuse("the signed token is damaged: copy its file again".to_owned()),
    };
    authorization.set_sensitive(true);
    let held = HeldToken {
        id: claims.id,
        name: claims.name,
        key: token.key().clone(),
        expires_at_ms: claims.expires_at_ms,
        authorization,
    };
    is_current(&held, keys, now_ms)?;
    Ok(Principal::of_token(held, grant))
}

/// Whether a token that was valid once still is.
pub(super) fn is_current(token: &HeldToken, keys: &PublicKeys, now_ms: u64) -> Result<(), Problem> {
    if keys.get(&token.key).is_none() {
        return Err(unknown_key(&token.key));
    }
    if now_ms >= token.expires_at_ms {
        return refuse(format!(
            "the token {} ({}) expired at {}, and this node's clock says {}: {ANOTHER}, or set the clock if it is wrong",
            token.id,
            token.name,
            written(token.expires_at_ms),
            written(now_ms)
        ));
    }
    Ok(())
}

fn unknown_key(key: &holdfast_api::Name) -> Problem {
    Problem::refused(
        Code::Unauthorized,
        format!(
            "the token is signed by key {key}, which is not among this node's (--token-keys): it is of another cluster, or the key was taken out; {ANOTHER}"
        ),
    )
}

fn refuse<T>(message: String) -> Result<T, Problem> {
    Err(Problem::refused(Code::Unauthorized, message))
}

fn written(ms: u64) -> String {
    let time = UNIX_EPOCH + Duration::from_millis(ms.min(WRITTEN_MAX_MS));
    humantime::format_rfc3339_seconds(time).to_string()
}

#[cfg(test)]
mod tests {
    use holdfast_api::grant::{Claims, Role, SigningKey};

    use super::*;

    const NOW: u64 = 1_800_000_000_000;

    fn claims() -> Claims {
        Claims {
            id: "t1".parse().unwrap(),
            name: "team-a".parse().unwrap(),
            role: "job".to_owned(),
            jobs: vec!["llm-*".parse().unwrap()],
            made_at_ms: NOW,
            expires_at_ms: NOW + 1,
        }
    }

    #[test]
    fn a_token_is_taken_from_its_making_to_its_expiry() {
        let key = SigningKey::generate().unwrap();
        let keys = PublicKeys::parse(key.public().to_line().as_bytes()).unwrap();
        let held = verify(&keys, &key.sign(&claims()).unwrap(), NOW).unwrap();
        assert_eq!(held.role(), Role::Job);
        assert!(held.has_job(&"llm-7b".parse().unwrap()));
        assert!(!held.has_job(&"web".parse().unwrap()));
        let early = Claims { made_at_ms: NOW + CLOCK_SKEW_MS, ..claims() };
        assert!(verify(&keys, &key.sign(&early).unwrap(), NOW).is_ok(), "clocks differ a little");
    }

    #[test]
    fn what_is_wrong_with_a_token_is_said_with_what_to_do() {
        let (key, other) = (SigningKey::generate().unwrap(), SigningKey::generate().unwrap());
        let keys = PublicKeys::parse(key.public().to_line().as_bytes()).unwrap();
        let sign = |claims: Claims| key.sign(&claims).unwrap();
        let good = sign(claims());
        let cases: [(String, u64, &[&str]); 8] = [
            (good.clone(), NOW + 1, &["expired at 2027-01-15", "clock says", "token create"]),
            (good.clone(), NOW - 3_600_000, &["not valid before", "clock says", "set the clock"]),
            (other.sign(&claims()).unwrap(), NOW, &[other.public().id().as_str(), "--token-keys"]),
            (sign(Claims { role: "auditor".to_owned(), ..claims() }), NOW, &["auditor", "version"]),
            (sign(Claims { role: "peer".to_owned(), ..claims() }), NOW, &["--peer-tls-cert"]),
            (sign(Claims { jobs: vec![], ..claims() }), NOW, &["names its jobs"]),
            (good[..good.len() - 9].to_owned(), NOW, &["copy its file again"]),
            (format!("v4.public.{}", "A".repeat(1 << 20)), NOW, &["damaged, or too long"]),
        ];
        for (text, now_ms, words) in cases {
            let problem = verify(&keys, &text, now_ms).unwrap_err();
            assert_eq!(problem.code, Code::Unauthorized);
            for word in words {
                assert!(problem.message.contains(word), "{word}: {}", problem.message);
            }
            assert!(problem.message.len() < 400, "{}", problem.message);
        }
    }

    #[test]
    fn a_token_ends_with_its_key() {
        let (old, new) = (SigningKey::generate().unwrap(), SigningKey::generate().unwrap());
        let both = format!("{}{}", old.public().to_line(), new.public().to_line());
        let both = PublicKeys::parse(both.as_bytes()).unwrap();
        let principal = verify(&both, &old.sign(&claims()).unwrap(), NOW).unwrap();
        let token = principal.token().unwrap();
        assert!(is_current(token, &both, NOW).is_ok());
        let new = PublicKeys::parse(new.public().to_line().as_bytes()).unwrap();
        assert!(is_current(token, &new, NOW).unwrap_err().message.contains("taken out"));
    }
}
