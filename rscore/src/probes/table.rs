//! The probe table, compiled in from `table.txt`: rows as data, places by convention.

use std::sync::OnceLock;

use super::abi::{locate, Arch, Location, Type};
use super::site::{flag, Field, Place, Spec, FIELDS};
use crate::wire::{function, what, NO_PEER, NO_TYPE};

/// Which table rows a library is probed with; a library may be several at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Kinds {
    pub nccl: bool,
    pub rccl: bool,
    pub gloo: bool,
}

impl Kinds {
    fn meets(&self, other: &Kinds) -> bool {
        self.nccl && other.nccl || self.rccl && other.rccl || self.gloo && other.gloo
    }
}

/// Exported exactly where `gloo::Context` has a virtual table.
pub const VIRTUAL_CONTEXT: &str = "_ZN4gloo7ContextD0Ev";

/// One read on the way to a value.
#[derive(Clone, Copy, Debug)]
struct Step {
    offset: i32,
    /// The object may begin with a pointer to its virtual table.
    behind_vtable: bool,
}

/// Where the value of a field comes from.
#[derive(Clone, Debug)]
enum Source {
    Const(i32),
    Argument { index: usize, path: Vec<Step>, ty: Type, rare: bool },
}

/// One probed function.
#[derive(Clone, Debug)]
pub struct Row {
    pub kinds: Kinds,
    pub symbol: &'static str,
    pub what: u8,
    pub function: u8,
    /// Release of the library that brought the symbol.
    pub since: &'static str,
    arguments: Vec<Type>,
    fields: [Source; FIELDS],
    bytes: bool,
}

impl Row {
    /// Whether the row fires at every collective: its cost in the job counts.
    pub fn hot(&self) -> bool {
        (what::ENTER..=what::GROUP_END).contains(&self.what) || self.what == what::FAILED
    }

    /// The other name of the same function: `pncclX` of `ncclX`.
    pub fn twin(&self) -> Option<String> {
        self.symbol.starts_with("nccl").then(|| format!("p{}", self.symbol))
    }

    /// Number of arguments of the C signature.
    pub fn arguments(&self) -> usize {
        self.arguments.len()
    }

    /// The place of one argument at function entry; of a structure, its first eight bytes.
    pub fn argument(&self, arch: Arch, index: usize) -> Option<Place> {
        let ty = *self.arguments.get(index)?;
        let path: &[i32] = if matches!(ty, Type::Struct(_)) { &[0] } else { &[] };
        place_of(&locate(arch, &self.arguments)[index], ty, path, ty)
    }

    /// The `sites` row at function entry, for this architecture and a library that has, or has
    /// not, [`VIRTUAL_CONTEXT`].
    pub fn spec(&self, arch: Arch, row: u32, virtual_context: bool) -> Result<Spec, String> {
        let locations = locate(arch, &self.arguments);
        let mut places = [Place::default(); FIELDS];
        for (place, source) in places.iter_mut().zip(&self.fields) {
            *place = match source {
                Source::Const(value) => Place::constant(*value),
                Source::Argument { index, path, ty, rare } => {
                    let shift = |s: &Step| if s.behind_vtable && virtual_context { 8 } else { 0 };
                    let path: Vec<i32> = path.iter().map(|s| s.offset + shift(s)).collect();
                    place_of(&locations[*index], self.arguments[*index], &path, *ty)
                        .ok_or_else(|| format!("{}: too many reads", self.symbol))?
                        .rarely(*rare)
                }
            };
        }
        Ok(Spec { what: self.what, function: self.function, flags: self.flags(), row, places })
    }

    fn flags(&self) -> u16 {
        let mut flags = match self.what {
            what::ENTER => flag::USES,
            what::COMM_INIT | what::COMM_INIT_ALL => flag::OUT_COMM,
            what::COMM_SPLIT | what::COMM_SHRINK | what::COMM_GROW => flag::OUT_ID | flag::USES,
            what::COMM_DESTROY | what::COMM_ABORT => flag::ENDS,
            _ => 0,
        };
        if !self.hot() {
            flags |= flag::LIFECYCLE;
        }
        if self.bytes {
            flags |= flag::BYTES;
        }
        flags
    }
}

fn place_of(at: &Location, argument: Type, path: &[i32], ty: Type) -> Option<Place> {
    let (width, signed) = ty.width();
    let mut reads = at.reads.clone();
    match path {
        [] => {}
        // Inside a structure by value, or behind a pointer: the first offset counts from the
        // structure's start.
        [first, rest @ ..] => {
            let start = if matches!(argument, Type::Struct(_)) { at.start } else { 0 };
            reads.push(start.checked_add(*first)?);
            reads.extend_from_slice(rest);
        }
    }
    Place::value(at.base, &reads, width, signed)
}

/// Every row, in the order of the file; the row's number is its index.
pub fn rows() -> &'static [Row] {
    static ROWS: OnceLock<Vec<Row>> = OnceLock::new();
    ROWS.get_or_init(|| {
        let text = include_str!("table.txt").lines().filter(|l| !l.is_empty());
        // A row that does not parse is left out here and fails the unit test below.
        text.filter(|l| !l.starts_with('#')).filter_map(|l| parse(l).ok()).collect()
    })
}

/// Rows that a library of these kinds is probed with.
pub fn rows_of(kinds: &Kinds) -> impl Iterator<Item = (u32, &'static Row)> + use<'_> {
    let numbered = rows().iter().enumerate().map(|(i, row)| (i as u32, row));
    numbered.filter(move |(_, row)| row.kinds.meets(kinds))
}

fn parse(line: &'static str) -> Result<Row, String> {
    let cells: Vec<&str> = line.split('|').map(str::trim).collect();
    let [libraries, symbol, what_name, function_name, since, arguments, fields] = cells[..] else {
        return Err(format!("not seven cells: {line}"));
    };
    let mut kinds = Kinds::default();
    for library in libraries.split(',') {
        match library {
            "nccl" => kinds.nccl = true,
            "rccl" => kinds.rccl = true,
            "gloo" => kinds.gloo = true,
            other => return Err(format!("unknown library {other}")),
        }
    }
    let mut names = Vec::new();
    let mut types = Vec::new();
    for argument in arguments.split_whitespace() {
        let (name, ty) = argument.split_once(':').ok_or("argument without a type")?;
        names.push(name);
        types.push(parse_type(ty)?);
    }
    let mut row = Row {
        kinds,
        symbol,
        what: position(&what::NAMES, what_name)?,
        function: position(&function::NAMES, function_name)?,
        since,
        arguments: types,
        fields: std::array::from_fn(|i| Source::Const(absent(i))),
        bytes: false,
    };
    for (index, name) in names.iter().enumerate() {
        if let Some(field) = field(name) {
            let ty = row.arguments[index];
            row.fields[field as usize] = Source::Argument { index, path: vec![], ty, rare: false };
        }
    }
    for assignment in fields.split_whitespace() {
        let (name, source) = assignment.split_once('=').ok_or("field without a source")?;
        let (name, rare) = match name.strip_suffix('?') {
            Some(name) => (name, true),
            None => (name, false),
        };
        row.bytes |= name == "bytes";
        let name = if name == "bytes" { "count" } else { name };
        let field = field(name).ok_or_else(|| format!("unknown field {name}"))?;
        row.fields[field as usize] = parse_source(source, rare, &names, &row.arguments)?;
    }
    Ok(row)
}

fn parse_type(ty: &str) -> Result<Type, String> {
    Ok(match ty {
        "p" | "z" => Type::Word,
        "i" => Type::Int,
        "u" => Type::Unsigned,
        "s128" => Type::Struct(128),
        other => return Err(format!("unknown type {other}")),
    })
}

fn parse_source(
    source: &str,
    rare: bool,
    names: &[&str],
    arguments: &[Type],
) -> Result<Source, String> {
    if let Ok(value) = source.parse() {
        return Ok(Source::Const(value));
    }
    let (path, ty) = match source.split_once(':') {
        Some((path, ty)) => (path, Some(parse_type(ty)?)),
        None => (source, None),
    };
    let mut parts = path.split('[');
    let name = parts.next().unwrap_or_default();
    let index = names.iter().position(|n| *n == name).ok_or(format!("no argument {name}"))?;
    let path = parts.map(parse_step).collect::<Result<Vec<Step>, _>>()?;
    let default = if path.is_empty() { arguments[index] } else { Type::Word };
    Ok(Source::Argument { index, path, ty: ty.unwrap_or(default), rare })
}

fn parse_step(step: &str) -> Result<Step, String> {
    let inner = step.strip_suffix(']').ok_or_else(|| format!("no closing bracket: {step}"))?;
    let (behind_vtable, number) = match inner.strip_prefix("v+") {
        Some(number) => (true, number),
        None => (false, inner),
    };
    let offset = number.parse().map_err(|_| format!("offset {number}"))?;
    Ok(Step { offset, behind_vtable })
}

fn position(names: &[&str], name: &str) -> Result<u8, String> {
    let at = names.iter().position(|n| *n == name).ok_or(format!("unknown name {name}"))?;
    Ok(at as u8)
}

fn field(name: &str) -> Option<Field> {
    Some(match name {
        "count" => Field::Count,
        "comm" => Field::Comm,
        "id" => Field::Id,
        "aux" => Field::Aux,
        "peer" => Field::Peer,
        "datatype" => Field::Datatype,
        "reduction" => Field::Reduction,
        _ => return None,
    })
}

/// What a field says where the call does not have it.
fn absent(field: usize) -> i32 {
    match field {
        f if f == Field::Peer as usize => NO_PEER,
        f if f == Field::Datatype as usize || f == Field::Reduction as usize => i32::from(NO_TYPE),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_of_the_table_parses_and_has_places() {
        let mut lines = 0;
        for line in include_str!("table.txt").lines() {
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let row = parse(line).unwrap_or_else(|e| panic!("{line}: {e}"));
            for arch in [Arch::X86_64, Arch::Aarch64] {
                row.spec(arch, 0, true).unwrap_or_else(|e| panic!("{e}"));
            }
            lines += 1;
        }
        assert_eq!(lines, rows().len());
        assert!(lines > 50, "{lines} rows");
    }

    #[test]
    fn no_symbol_stands_twice() {
        let mut symbols: Vec<_> = rows().iter().map(|r| r.symbol).collect();
        symbols.sort_unstable();
        let all = symbols.len();
        symbols.dedup();
        assert_eq!(all, symbols.len());
    }

    #[test]
    fn places_follow_the_convention() {
        let row = |name| rows().iter().find(|r| r.symbol == name).unwrap();
        let text = |name, arch, field: Field| {
            row(name).spec(arch, 0, false).unwrap().places[field as usize].to_string()
        };
        use Arch::{Aarch64, X86_64};
        assert_eq!(text("ncclAllReduce", X86_64, Field::Comm), "arg5:u64");
        assert_eq!(text("ncclReduce", Aarch64, Field::Comm), "arg6:u64");
        assert_eq!(text("ncclReduceConfig", X86_64, Field::Comm), "sp[8]:u64");
        assert_eq!(text("ncclPutSignal", X86_64, Field::Comm), "sp[32]:u64");
        assert_eq!(text("ncclPutSignal", Aarch64, Field::Comm), "sp[8]:u64");
        assert_eq!(text("ncclCommInitRank", X86_64, Field::Peer), "arg2:i32");
        assert_eq!(text("ncclCommInitRank", X86_64, Field::Id), "sp[8]:u64");
        assert_eq!(text("ncclCommInitRank", Aarch64, Field::Id), "arg2[0]:u64");
        assert_eq!(text("ncclCommInitRankScalable", X86_64, Field::Id), "arg4[0]:u64");
        let barrier = row("_ZN4gloo7barrierERNS_14BarrierOptionsE");
        let size = |v| barrier.spec(X86_64, 0, v).unwrap().places[Field::Aux as usize].to_string();
        assert_eq!((size(false), size(true)), ("arg0[0][0]:u64".into(), "arg0[0][8]:u64".into()));
    }
}
