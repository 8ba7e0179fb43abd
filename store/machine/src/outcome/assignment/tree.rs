//! Ranks by a tree of domains: NVRx's `Tree`.
//!
//! The layers divide the candidates into domains within domains; the root holds
//! all. Those without the label form one domain. Then, in NVRx's order:
//!
//! 1. From the leaves up: a domain with fewer than `ranks_min` is left out.
//! 2. A rank that was lost, by this or before, goes to a process without a rank
//!    from the nearest domain around its old holder, as far up as all layers are
//!    `reserve`. Lower ranks choose first; the lowest process is chosen. As in
//!    NVRx, a stand-in may bring its own domain above `ranks_max`.
//! 3. Ranks still lost are filled within the widest domain around its old holder
//!    up to which all layers are `backfill`, as `FillGaps` does: the highest
//!    ranks of the domain go into the gaps, in their order. (NVRx's code moves
//!    some to a higher rank and back by the next step.)
//! 4. Gaps that remain are closed by shifting.
//! 5. If the root has more than `ranks_max`, as after changed terms, the highest
//!    ranks are left out.
//! 6. A process without a rank gets the next one, if no domain around it has
//!    `ranks_max` by then; else it is left out, and is a reserve. Depth first,
//!    domains and processes by the lowest process. For a first iteration this is
//!    NVRx's initial assignment; later it lets newcomers in, which NVRx does not
//!    know.

use std::collections::{BTreeMap, BTreeSet};

use holdfast_api::{Labels, TreeLayer};

use super::{Candidacy, Candidate, Lost, shift};

/// Gives the candidates their ranks, and returns the places of those left out.
pub(super) fn assign(
    layers: &[TreeLayer],
    candidates: &[Candidate<'_>],
    lost: &[Lost<'_>],
    candidacies: &mut Vec<Candidacy>,
) -> Vec<usize> {
    let mut tree = Tree::new(layers);
    let leaf = |candidacy: Candidacy| {
        let home = tree.home(candidates[candidacy.place].labels);
        tree.settle(candidacy.place, home);
        Leaf { candidacy, home }
    };
    let mut leaves: Vec<Leaf> = candidacies.drain(..).map(leaf).collect();
    tree.dismiss();
    let dismissed: Vec<Leaf> =
        leaves.extract_if(.., |leaf| tree.domains[leaf.home].dismissed).collect();
    let vacancies = tree.vacancies(lost, &leaves, &dismissed);
    let (waiting, mut active): (Vec<Leaf>, Vec<Leaf>) =
        leaves.into_iter().partition(|leaf| leaf.candidacy.newcomer);

    let mut waiting = waiting.into_iter().map(|leaf| (leaf.candidacy.place, leaf)).collect();
    let unfilled = tree.stand_in(vacancies, &mut waiting, &mut active);
    tree.backfill(unfilled, &mut active);

    let excess = match tree.layer(ROOT).map_or(0, |root| root.ranks_max as usize) {
        0 => Vec::new(),
        max => active.split_off(max.min(active.len())),
    };
    let reserve = tree.grow(waiting.into_values().collect(), &mut active);
    candidacies.extend(active.iter().map(|leaf| leaf.candidacy));
    shift(candidacies);
    let out = dismissed.iter().chain(&excess).chain(&reserve);
    out.map(|leaf| leaf.candidacy.place).collect()
}

/// The domain of all candidates.
const ROOT: usize = 0;

struct Tree<'m> {
    layers: &'m [TreeLayer],
    /// Each after the one around it.
    domains: Vec<Domain>,
    /// The domains within a domain, by the value of the next layer's label.
    within: BTreeMap<(usize, Option<&'m str>), usize>,
}

struct Domain {
    around: Option<usize>,
    layer: usize,
    /// Its lowest position among the candidates: the key of its order.
    lowest: usize,
    /// Candidates that are not left out.
    healthy: u32,
    /// Candidates with a rank.
    active: u32,
    dismissed: bool,
}

/// A candidate under the innermost domain that it is in.
#[derive(Clone, Copy)]
struct Leaf {
    candidacy: Candidacy,
    home: usize,
}

/// A rank that is free, and where its holder was.
struct Vacancy {
    rank: u64,
    home: usize,
}

impl<'m> Tree<'m> {
    fn new(layers: &'m [TreeLayer]) -> Self {
        let mut tree = Tree { layers, domains: Vec::new(), within: BTreeMap::new() };
        tree.found(None, 0);
        tree
    }

    fn found(&mut self, around: Option<usize>, layer: usize) -> usize {
        let (lowest, healthy, active, dismissed) = (usize::MAX, 0, 0, false);
        self.domains.push(Domain { around, layer, lowest, healthy, active, dismissed });
        self.domains.len() - 1
    }

    /// The innermost domain of these labels.
    fn home(&mut self, labels: &'m Labels) -> usize {
        let mut home = ROOT;
        for (depth, layer) in self.layers.iter().enumerate().skip(1) {
            let value = layer.label.as_ref().and_then(|label| labels.get(label));
            let key = (home, value.map(String::as_str));
            home = match self.within.get(&key) {
                Some(domain) => *domain,
                None => {
                    let domain = self.found(Some(home), depth);
                    self.within.insert(key, domain);
                    domain
                }
            };
        }
        home
    }

    fn layer(&self, domain: usize) -> Option<&'m TreeLayer> {
        self.layers.get(self.domains[domain].layer)
    }

    /// The domain and all around it, from the inside out.
    fn outwards(&self, domain: usize) -> impl Iterator<Item = usize> + use<'_, 'm> {
        std::iter::successors(Some(domain), |domain| self.domains[*domain].around)
    }

    fn settle(&mut self, place: usize, home: usize) {
        self.domains[home].healthy += 1;
        let mut next = Some(home);
        while let Some(domain) = next {
            let domain = &mut self.domains[domain];
            domain.lowest = domain.lowest.min(place);
            next = domain.around;
        }
    }

    /// Step 1. Inner domains come after outer ones: backwards is upwards.
    fn dismiss(&mut self) {
        for domain in (0..self.domains.len()).rev() {
            let healthy = self.domains[domain].healthy;
            if healthy < self.layer(domain).map_or(0, |layer| layer.ranks_min) {
                self.domains[domain].dismissed = true;
            } else if let Some(around) = self.domains[domain].around {
                self.domains[around].healthy += healthy;
            }
        }
        for domain in 1..self.domains.len() {
            let around = self.domains[domain].around;
            let too = around.is_some_and(|around| self.domains[around].dismissed);
            self.domains[domain].dismissed |= too;
        }
    }

    /// The free ranks, ascending.
    fn vacancies(
        &mut self,
        lost: &[Lost<'m>],
        leaves: &[Leaf],
        dismissed: &[Leaf],
    ) -> Vec<Vacancy> {
        let ranked = |leaf: &&Leaf| !leaf.candidacy.newcomer;
        let held = leaves.iter().chain(dismissed).filter(ranked);
        let mut known: BTreeSet<u64> = held.map(|leaf| leaf.candidacy.rank).collect();
        let vacated = dismissed.iter().filter(ranked);
        let mut vacancies: Vec<Vacancy> =
            vacated.map(|leaf| Vacancy { rank: leaf.candidacy.rank, home: leaf.home }).collect();
        for lost in lost {
            let rank = lost.rank.into();
            if known.insert(rank) {
                vacancies.push(Vacancy { rank, home: self.home(lost.labels) });
            }
        }
        vacancies.sort_unstable_by_key(|vacancy| vacancy.rank);
        vacancies
    }

    /// Step 2. Returns the ranks that stay free.
    fn stand_in(
        &self,
        mut vacancies: Vec<Vacancy>,
        waiting: &mut BTreeMap<usize, Leaf>,
        active: &mut Vec<Leaf>,
    ) -> Vec<Vacancy> {
        if vacancies.is_empty() {
            return vacancies;
        }
        // By domain, lowest place first.
        let mut reserves: BTreeSet<(usize, usize)> = BTreeSet::new();
        for leaf in waiting.values() {
            reserves.extend(self.outwards(leaf.home).map(|domain| (domain, leaf.candidacy.place)));
        }
        vacancies.retain(|vacancy| {
            let reserve = |domain: &usize| self.layer(*domain).is_some_and(|layer| layer.reserve);
            let mut near = self.outwards(vacancy.home).take_while(reserve);
            let lowest =
                |domain| Some(reserves.range((domain, 0)..=(domain, usize::MAX)).next()?.1);
            let Some(mut leaf) = near.find_map(lowest).and_then(|place| waiting.remove(&place))
            else {
                return true;
            };
            for domain in self.outwards(leaf.home) {
                reserves.remove(&(domain, leaf.candidacy.place));
            }
            leaf.candidacy.rank = vacancy.rank;
            active.push(leaf);
            false
        });
        vacancies
    }

    /// Step 3. Leaves the active ones in the order of their ranks: renumbering closes
    /// the remaining gaps.
    fn backfill(&self, vacancies: Vec<Vacancy>, active: &mut [Leaf]) {
        active.sort_unstable_by_key(|leaf| leaf.candidacy.rank);
        let top = self.layers.iter().rposition(|layer| !layer.backfill).map_or(0, |last| last + 1);
        let widest = |home| self.outwards(home).find(|domain| self.domains[*domain].layer == top);
        let mut gaps: BTreeMap<usize, Vec<u64>> = BTreeMap::new();
        for vacancy in vacancies {
            if let Some(domain) = widest(vacancy.home) {
                gaps.entry(domain).or_default().push(vacancy.rank);
            }
        }
        let mut holders: BTreeMap<usize, Vec<&mut Leaf>> = BTreeMap::new();
        for leaf in &mut *active {
            if let Some(domain) = widest(leaf.home).filter(|domain| gaps.contains_key(domain)) {
                holders.entry(domain).or_default().push(leaf);
            }
        }
        for (domain, holders) in holders {
            let gaps = gaps.remove(&domain).unwrap_or_default();
            let held = holders.iter().map(|leaf| leaf.candidacy.rank);
            let mut ranks: Vec<u64> = held.chain(gaps.iter().copied()).collect();
            ranks.sort_unstable();
            let above = ranks[holders.len()..].first().copied().unwrap_or(u64::MAX);
            let moving = holders.into_iter().filter(|leaf| leaf.candidacy.rank >= above);
            for (leaf, gap) in moving.zip(gaps) {
                leaf.candidacy.rank = gap;
            }
        }
        active.sort_unstable_by_key(|leaf| leaf.candidacy.rank);
    }

    /// Step 6. Returns those that stay without a rank.
    fn grow(&mut self, mut waiting: Vec<Leaf>, active: &mut Vec<Leaf>) -> Vec<Leaf> {
        for leaf in &*active {
            self.count_active(leaf.home);
        }
        waiting.sort_by_cached_key(|leaf| {
            let mut path: Vec<usize> =
                self.outwards(leaf.home).map(|domain| self.domains[domain].lowest).collect();
            path.reverse();
            (path, leaf.candidacy.place)
        });
        waiting.retain(|leaf| {
            let full = |domain| {
                let max = self.layer(domain).map_or(0, |layer| layer.ranks_max);
                max != 0 && self.domains[domain].active >= max
            };
            if self.outwards(leaf.home).any(full) {
                return true;
            }
            self.count_active(leaf.home);
            active.push(*leaf);
            false
        });
        waiting
    }

    fn count_active(&mut self, home: usize) {
        let mut next = Some(home);
        while let Some(domain) = next {
            self.domains[domain].active += 1;
            next = self.domains[domain].around;
        }
    }
}
