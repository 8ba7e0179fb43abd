//! Points in time with known bounds and some known orders, and whether all of them can be placed.
//!
//! A set of bounds and orders can be placed iff no point comes before itself
//! and every point's earliest moment, pushed along the orders, lies within its
//! bounds: then each point is put at its earliest moment, and those that share
//! one are put a little apart, as they are ordered. So both are kept up with
//! each new order, and nothing has to be searched but for alternatives.

use crate::history::Moment;

/// A point in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Point(usize);

/// One point before another.
pub type Before = (Point, Point);

/// There is no placement. The last addition is not in the order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Contradiction;

/// Points, their bounds and orders.
#[derive(Debug, Default)]
pub struct Order {
    earliest: Vec<Moment>,
    latest: Vec<Moment>,
    after: Vec<Vec<usize>>,
    before: Vec<Vec<usize>>,
    /// Changes to undo, newest last.
    trail: Vec<Change>,
}

#[derive(Debug)]
enum Change {
    Earliest(usize, Moment),
    Latest(usize, Moment),
    Edge(usize, usize),
}

impl Order {
    /// A new point, no earlier and no later than this.
    pub fn point(&mut self, earliest: Moment, latest: Moment) -> Point {
        self.earliest.push(earliest);
        self.latest.push(latest);
        self.after.push(Vec::new());
        self.before.push(Vec::new());
        Point(self.earliest.len() - 1)
    }

    /// The bounds of a point that are known by now.
    pub fn bounds(&self, point: Point) -> (Moment, Moment) {
        (self.earliest[point.0], self.latest[point.0])
    }

    /// Puts points before others: all of these or, if that cannot be, none.
    pub fn put(&mut self, orders: &[Before]) -> Result<(), Contradiction> {
        let mark = self.trail.len();
        for (first, second) in orders {
            if let Err(contradiction) = self.put_one(first.0, second.0) {
                self.undo(mark);
                return Err(contradiction);
            }
        }
        Ok(())
    }

    /// Whether these orders could be put.
    pub fn allows(&mut self, orders: &[Before]) -> bool {
        let mark = self.trail.len();
        let allowed = self.put(orders).is_ok();
        self.undo(mark);
        allowed
    }

    /// Where [`Order::undo`] can go back to.
    pub fn mark(&self) -> usize {
        self.trail.len()
    }

    /// Takes back everything that was put since the mark.
    pub fn undo(&mut self, mark: usize) {
        for change in self.trail.drain(mark..).rev() {
            match change {
                Change::Earliest(point, old) => self.earliest[point] = old,
                Change::Latest(point, old) => self.latest[point] = old,
                Change::Edge(first, second) => {
                    self.after[first].pop();
                    self.before[second].pop();
                }
            }
        }
    }

    fn put_one(&mut self, first: usize, second: usize) -> Result<(), Contradiction> {
        if self.earliest[first] > self.latest[second] || self.reaches(second, first) {
            return Err(Contradiction);
        }
        if self.after[first].contains(&second) {
            return Ok(());
        }
        self.after[first].push(second);
        self.before[second].push(first);
        self.trail.push(Change::Edge(first, second));
        self.push_later(first)?;
        self.push_earlier(second)
    }

    /// Whether `from` comes before `to`, or is the same.
    fn reaches(&self, from: usize, to: usize) -> bool {
        let mut seen = vec![false; self.after.len()];
        let mut next = vec![from];
        while let Some(point) = next.pop() {
            if point == to {
                return true;
            }
            for &later in &self.after[point] {
                // No point after one that is surely later leads back.
                if self.earliest[later] <= self.latest[to] && !seen[later] {
                    seen[later] = true;
                    next.push(later);
                }
            }
        }
        false
    }

    fn push_later(&mut self, from: usize) -> Result<(), Contradiction> {
        let mut next = vec![from];
        while let Some(point) = next.pop() {
            for n in 0..self.after[point].len() {
                let (later, earliest) = (self.after[point][n], self.earliest[point]);
                if self.earliest[later] >= earliest {
                    continue;
                }
                if earliest > self.latest[later] {
                    return Err(Contradiction);
                }
                self.trail.push(Change::Earliest(later, self.earliest[later]));
                self.earliest[later] = earliest;
                next.push(later);
            }
        }
        Ok(())
    }

    fn push_earlier(&mut self, from: usize) -> Result<(), Contradiction> {
        let mut next = vec![from];
        while let Some(point) = next.pop() {
            for n in 0..self.before[point].len() {
                let (sooner, latest) = (self.before[point][n], self.latest[point]);
                if self.latest[sooner] <= latest {
                    continue;
                }
                if latest < self.earliest[sooner] {
                    return Err(Contradiction);
                }
                self.trail.push(Change::Latest(sooner, self.latest[sooner]));
                self.latest[sooner] = latest;
                next.push(sooner);
            }
        }
        Ok(())
    }
}

/// Alternatives, each of them orders that would have to hold.
#[derive(Debug, Clone)]
pub struct Choice {
    /// For each alternative, the orders that would have to hold.
    pub ways: Vec<Vec<Before>>,
}

/// The result of a set of choices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Chosen {
    /// All could be made together.
    All,
    /// This one has no alternative left under any choice for those that have several:
    /// it contradicts what is certain.
    None(usize),
    /// Each has an alternative, but no combination was found to fit.
    NoCombination,
    /// The search was given up.
    GivenUp,
}

/// Makes all choices so that everything fits, and leaves their orders in the
/// order. `steps_max` bounds how often a guess may be tried.
pub fn choose(order: &mut Order, choices: &[Choice], steps_max: usize) -> Chosen {
    let mut open: Vec<usize> = (0..choices.len()).collect();
    if let Err(hopeless) = narrow(order, choices, &mut open) {
        return Chosen::None(hopeless);
    }
    let mut steps = steps_max;
    match guess(order, choices, &open, &mut steps) {
        Some(true) => Chosen::All,
        Some(false) => Chosen::NoCombination,
        None => Chosen::GivenUp,
    }
}

/// Makes every choice that has one alternative left, until nothing follows any more.
/// `open` keeps those with several. The error is a choice without any.
fn narrow(order: &mut Order, choices: &[Choice], open: &mut Vec<usize>) -> Result<(), usize> {
    loop {
        let mut undecided = Vec::new();
        let mut changed = false;
        for &choice in &*open {
            let mut ways = choices[choice].ways.iter().filter(|way| order.allows(way));
            let (first, second) = (ways.next(), ways.next());
            match (first, second) {
                (None, _) => return Err(choice),
                (Some(way), None) => {
                    order.put(way).map_err(|_| choice)?;
                    changed = true;
                }
                (Some(_), Some(_)) => undecided.push(choice),
            }
        }
        *open = undecided;
        if !changed {
            return Ok(());
        }
    }
}

/// Tries the alternatives of the first open choice; none when the steps are used up.
fn guess(order: &mut Order, choices: &[Choice], open: &[usize], steps: &mut usize) -> Option<bool> {
    let Some((&choice, rest)) = open.split_first() else { return Some(true) };
    for way in &choices[choice].ways {
        *steps = steps.checked_sub(1)?;
        let mark = order.mark();
        let mut open = rest.to_vec();
        if order.put(way).is_ok()
            && narrow(order, choices, &mut open).is_ok()
            && guess(order, choices, &open, steps)?
        {
            return Some(true);
        }
        order.undo(mark);
    }
    Some(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_push_bounds_and_can_be_taken_back() {
        let mut order = Order::default();
        let (a, b, c) = (order.point(10, 50), order.point(0, 60), order.point(0, 40));
        let mark = order.mark();
        order.put(&[(a, b), (b, c)]).unwrap();
        assert_eq!(order.bounds(b), (10, 40));
        assert_eq!(order.bounds(a), (10, 40));
        assert_eq!(order.put(&[(c, a)]), Err(Contradiction), "a circle");
        order.undo(mark);
        assert_eq!(order.bounds(b), (0, 60));
        assert!(order.allows(&[(c, a)]));
    }

    #[test]
    fn points_that_cannot_lie_in_their_order_contradict() {
        let mut order = Order::default();
        let (a, b, c) = (order.point(30, 50), order.point(0, 60), order.point(0, 20));
        order.put(&[(a, b)]).unwrap();
        assert_eq!(order.put(&[(b, c)]), Err(Contradiction));
        assert_eq!(order.bounds(b), (30, 60), "what failed leaves nothing behind");
    }

    #[test]
    fn choices_are_combined() {
        let mut order = Order::default();
        let (a, b, c) = (order.point(0, 9), order.point(0, 9), order.point(0, 9));
        let either = |x, y| Choice { ways: vec![vec![(x, y)], vec![(y, x)]] };
        order.put(&[(a, b)]).unwrap();
        let choices = [either(c, b), either(a, c)];
        assert_eq!(choose(&mut order, &choices, 100), Chosen::All);
        let choices = [Choice { ways: vec![vec![(b, a)]] }];
        assert_eq!(choose(&mut order, &choices, 100), Chosen::None(0));
        let mut order = Order::default();
        let points: Vec<Point> = (0..4).map(|_| order.point(0, 9)).collect();
        let circle = |n: usize| vec![(points[n], points[(n + 1) % 4])];
        let other = |n: usize| vec![(points[n], points[(n + 2) % 4])];
        let choices = [
            Choice { ways: vec![circle(0), circle(1)] },
            Choice { ways: vec![circle(2), other(2)] },
            Choice { ways: vec![circle(3), vec![(points[1], points[0])]] },
        ];
        assert_eq!(choose(&mut order, &choices, 0), Chosen::GivenUp, "no guess is allowed");
        assert_eq!(choose(&mut order, &choices, 100), Chosen::All);
    }

    #[test]
    fn choices_that_exclude_each_other_have_no_combination() {
        let mut order = Order::default();
        let points: Vec<Point> = (0..3).map(|_| order.point(0, 9)).collect();
        let (a, b, c) = (points[0], points[1], points[2]);
        let choices = [
            Choice { ways: vec![vec![(a, b)], vec![(a, c)]] },
            Choice { ways: vec![vec![(b, a), (c, a)], vec![(c, a), (b, a)]] },
        ];
        assert_eq!(choose(&mut order, &choices, 100), Chosen::NoCombination);
    }
}
