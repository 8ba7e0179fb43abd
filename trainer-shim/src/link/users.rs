//! Users of this host whose word counts.

use std::collections::BTreeSet;
use std::io;
use std::str::FromStr;

use nix::unistd::{User, getuid};

/// Names users beside this one: to an agent those that it serves, to a program those whose agent
/// it joins.
pub const ALLOW_UID_VARIABLE: &str = "HOLDFAST_ALLOW_UID";
/// Most users in a list.
const USERS_MAX: usize = 64;
const ANY: &str = "any";

/// This process's user, root, who may do anything anyway, and others.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Users {
    others: BTreeSet<u32>,
    any: bool,
}

/// A list of users that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UsersError {
    /// It names nobody there.
    #[error("{0:?} is not a user; write for instance 1000,trainer or any")]
    NoUser(String),
    /// The system does not know the name.
    #[error("this host has no user {0:?}; write the number that `id -u` prints for it")]
    Unknown(String),
    /// The system cannot be asked.
    #[error("cannot look for the user {name:?}: {reason}; write its number")]
    NotLookedUp {
        /// The user's name, as the list has it.
        name: String,
        /// The system's error on looking it up.
        reason: nix::Error,
    },
    /// There are too many.
    #[error("a list has at most {USERS_MAX} users; write any if all may")]
    TooMany,
}

impl Users {
    /// Those that [`ALLOW_UID_VARIABLE`] names.
    pub fn from_environment() -> io::Result<Users> {
        let text = std::env::var(ALLOW_UID_VARIABLE).unwrap_or_default();
        if text.is_empty() {
            return Ok(Users::default());
        }
        let wrong = |error| io::Error::new(io::ErrorKind::InvalidInput, error);
        text.parse().map_err(|error| wrong(format!("{ALLOW_UID_VARIABLE} {text:?}: {error}")))
    }

    /// Whether a process of this user counts.
    pub fn include(&self, uid: u32) -> bool {
        self.any || uid == 0 || uid == getuid().as_raw() || self.others.contains(&uid)
    }

    /// Whether every user counts.
    pub fn is_any(&self) -> bool {
        self.any
    }

    /// Whether users count who can do less than this one.
    pub fn has_others(&self) -> bool {
        self.any || !self.others.is_empty()
    }
}

impl FromStr for Users {
    type Err = UsersError;

    fn from_str(text: &str) -> Result<Users, UsersError> {
        let mut users = Users::default();
        for one in text.split(',') {
            match one {
                ANY => users.any = true,
                one => _ = users.others.insert(uid(one)?),
            }
            if users.others.len() > USERS_MAX {
                return Err(UsersError::TooMany);
            }
        }
        Ok(users)
    }
}

/// The number of a user who is given by number or by name.
fn uid(text: &str) -> Result<u32, UsersError> {
    let no_user = || UsersError::NoUser(text.to_owned());
    if text.bytes().all(|byte| byte.is_ascii_digit()) {
        // The highest number means nobody to the kernel.
        return text.parse().ok().filter(|uid| *uid < u32::MAX).ok_or_else(no_user);
    }
    if text.starts_with('-') || text.contains(|c: char| c.is_whitespace() || c.is_control()) {
        return Err(no_user());
    }
    match User::from_name(text) {
        Ok(Some(user)) => Ok(user.uid.as_raw()),
        Ok(None) => Err(UsersError::Unknown(text.to_owned())),
        Err(reason) => Err(UsersError::NotLookedUp { name: text.to_owned(), reason }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_user_and_root_count_and_whoever_is_named() {
        let own = getuid().as_raw();
        let stranger = own + 4711;
        for (text, counts) in [("1", false), (&*format!("1,{stranger}"), true), ("1,any", true)] {
            let users: Users = text.parse().unwrap();
            assert!(users.include(own) && users.include(0) && users.has_others());
            assert_eq!(users.include(stranger), counts, "{text}");
        }
        assert!(!Users::default().include(stranger) && !Users::default().has_others());
        let by_name: Users = "root,nobody".parse().unwrap();
        assert!(by_name.include(User::from_name("nobody").unwrap().unwrap().uid.as_raw()));
    }

    #[test]
    fn what_is_no_user_is_refused() {
        let refused = |text: &str| text.parse::<Users>().unwrap_err();
        for text in ["", "1,", "-1", "4294967295", "99999999999", "a b", "a\n"] {
            assert!(matches!(refused(text), UsersError::NoUser(_)), "{text:?}");
        }
        assert!(matches!(refused("nobody-is-called-so"), UsersError::Unknown(_)));
        let many: Vec<String> = (1..=USERS_MAX + 1).map(|uid| uid.to_string()).collect();
        assert_eq!(refused(&many.join(",")), UsersError::TooMany);
    }
}
