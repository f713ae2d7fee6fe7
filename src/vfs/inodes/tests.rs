use proptest::prelude::*;

use super::*;

fn table() -> Inodes {
    Inodes::new(Key::root())
}

#[test]
fn a_number_is_the_same_after_a_remount_and_never_reserved() {
    let (mut one, mut two) = (table(), table());
    two.remember(Inode::ROOT, &Key::from("other"));
    assert_eq!(one.remember(Inode::ROOT, &Key::from("a/b")), two.remember(Inode::ROOT, &Key::from("a/b")));
    for hash in [0, 1] {
        let mut table = Inodes::with_hash(Key::root(), if hash == 0 { |_| 0 } else { |_| u64::MAX });
        assert!(table.remember(Inode::ROOT, &Key::from("x")).0 > 1);
        assert!(table.remember(Inode::ROOT, &Key::from("y")).0 > 1);
    }
}

#[test]
fn a_file_and_a_directory_of_one_name_are_two_inodes() {
    let mut table = table();
    let file = table.remember(Inode::ROOT, &Key::from("a"));
    let directory = table.remember(Inode::ROOT, &Key::from("a/"));
    assert_ne!(file, directory);
    assert_eq!(table.get(file).expect("known").kind(), Kind::File);
    assert_eq!(table.get(directory).expect("known").kind(), Kind::Directory);
}

#[test]
fn an_inode_is_gone_when_every_lookup_is_forgotten() {
    let mut table = table();
    let ino = table.remember(Inode::ROOT, &Key::from("a"));
    table.remember(Inode::ROOT, &Key::from("a"));
    table.forget(ino, 1);
    assert!(table.get(ino).is_some());
    table.forget(ino, 1);
    assert!(table.get(ino).is_none());
    table.forget(Inode::ROOT, 99);
    assert!(table.get(Inode::ROOT).is_some());
}

#[test]
fn a_directory_that_is_forgotten_before_its_child_stays_until_the_child_goes() {
    let mut table = table();
    let directory = table.remember(Inode::ROOT, &Key::from("d/"));
    let file = table.remember(directory, &Key::from("d/f"));
    table.forget(directory, 1);
    assert!(table.get(directory).is_some());
    table.forget(file, 1);
    assert_eq!(table.len(), 1);
}

#[test]
fn a_displaced_key_keeps_its_number_when_the_other_key_goes() {
    let mut table = Inodes::with_hash(Key::root(), |_| 7);
    let first = table.remember(Inode::ROOT, &Key::from("first"));
    let second = table.remember(Inode::ROOT, &Key::from("second"));
    assert_eq!((first, second), (Inode(7), Inode(8)));
    table.forget(first, 1);
    assert_eq!(table.number(&Key::from("second")), second);
    assert_eq!(table.remember(Inode::ROOT, &Key::from("second")), second);
}

#[test]
fn a_retired_number_keeps_its_meaning_and_its_key_gets_another() {
    let mut table = table();
    let key = Key::from("a");
    let first = table.remember(Inode::ROOT, &key);
    table.retire(first);
    let second = table.remember(Inode::ROOT, &key);
    table.retire(second);
    let third = table.remember(Inode::ROOT, &key);
    assert!(first != second && second != third && third != first);
    assert_eq!(table.get(first), table.get(third));
    table.forget(first, 1);
    assert_eq!(table.number(&key), third);
    table.forget(third, 1);
    assert_eq!(table.number(&key), first, "its own number is free again");
    table.forget(second, 1);
    assert_eq!(table.len(), 1);
}

#[test]
fn a_renamed_file_keeps_its_number_and_what_it_replaces_loses_its_name() {
    let mut table = table();
    let (a, b) = (Key::from("a"), Key::from("b"));
    let (first, second) = (table.remember(Inode::ROOT, &a), table.remember(Inode::ROOT, &b));
    table.rename(&a, Inode::ROOT, &b);
    assert_eq!(table.number(&b), first);
    assert_eq!(table.get(first).expect("known").key, b);
    assert_eq!(table.get(second).expect("still known to the kernel").key, b);
    let again = table.remember(Inode::ROOT, &a);
    assert!(again != first && again != second);
    table.rename(&b, Inode::ROOT, &a);
    assert_eq!(table.number(&a), first, "back under its own name");
    for ino in [first, second, again] {
        table.forget(ino, 1);
    }
    assert_eq!(table.len(), 1);
    assert!(table.displaced.is_empty());
}

#[test]
fn what_is_in_a_renamed_directory_moves_along() {
    let mut table = table();
    let directory = table.remember(Inode::ROOT, &Key::from("d/"));
    let file = table.remember(directory, &Key::from("d/x/f"));
    let other = table.remember(Inode::ROOT, &Key::from("dx"));
    let target = table.remember(Inode::ROOT, &Key::from("t/"));
    table.rename(&Key::from("d/"), target, &Key::from("t/e/"));
    assert_eq!(table.get(directory).expect("known"), Node { key: Key::from("t/e/"), parent: target });
    assert_eq!(table.get(file).expect("known").key, Key::from("t/e/x/f"));
    assert_eq!(table.get(other).expect("known").key, Key::from("dx"));
    table.forget(target, 1);
    assert!(table.get(target).is_some(), "it holds the other");
    for ino in [file, directory, other] {
        table.forget(ino, 1);
    }
    assert_eq!(table.len(), 1);
    assert!(table.displaced.is_empty());
}

fn assert_same(one: &Inodes, other: &Inodes) {
    assert_eq!((one.len(), &one.displaced), (other.len(), &other.displaced));
    assert!(one.slots.iter().all(|(ino, slot)| other.slots.get(ino) == Some(slot)), "{one:?} {other:?}");
}

fn read_back(table: &Inodes) -> Inodes {
    Inodes::load(Key::root(), table.log().expect("it has one").try_clone_to_owned().unwrap()).unwrap()
}

#[test]
fn a_table_is_read_back_with_its_lookups_and_goes_on() {
    let mut table = table();
    table.write_to(Log::new(8 << 20).unwrap());
    let directory = table.remember(Inode::ROOT, &Key::from("d/"));
    for round in 0..200 {
        for number in 0..100 {
            table.remember(directory, &Key::from(format!("d/{number}")));
        }
        assert_eq!(table.len(), 102, "{round}");
    }
    let mut again = read_back(&table);
    assert_same(&again, &table);
    let file = again.number(&Key::from("d/7"));
    again.forget(file, 199);
    assert!(again.knows(file));
    again.forget(file, 7);
    assert!(!again.knows(file) && !read_back(&again).knows(file), "more than was counted is no harm");
    again.forget(directory, 1);
    assert!(read_back(&again).knows(directory), "what is in it is known");
}

#[derive(Clone, Debug)]
enum Step {
    Remember { parent: usize, name: u8, directory: bool },
    Forget { which: usize, n: u64 },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let remember = (any::<usize>(), 0..5u8, any::<bool>()).prop_map(|(parent, name, directory)| Step::Remember { parent, name, directory });
    let forget = (any::<usize>(), 1..4u64).prop_map(|(which, n)| Step::Forget { which, n });
    prop::collection::vec(prop_oneof![remember, forget], 1..80)
}

/// The reference: a plain list of what the kernel was told.
#[derive(Debug)]
struct Told {
    ino: Inode,
    key: Key,
    parent: Key,
    lookups: u64,
}

proptest! {
    #[test]
    fn whatever_happens_is_read_back(steps in prop::collection::vec((0u8..6, 0u8..4, 0u8..4, any::<bool>()), 1..60)) {
        let mut table = table();
        table.write_to(Log::new(1 << 20).unwrap());
        let key = |name: u8, directory| Key::from(format!("{}{}", char::from(b'a' + name), if directory { "/" } else { "" }));
        for (what, one, other, directory) in steps {
            let (from, to) = (key(one, directory), key(other, directory));
            let ino = table.number(&from);
            match what {
                0..=1 => drop(table.remember(Inode::ROOT, &from)),
                2 => table.forget(ino, u64::from(other)),
                3 => table.retire(ino),
                4 => table.remove_name(ino),
                _ => table.rename(&from, Inode::ROOT, &to),
            }
            assert_same(&read_back(&table), &table);
        }
    }

    /// With a hash of four values, so that nearly everything collides.
    #[test]
    fn behaves_like_a_list_of_what_the_kernel_was_told(steps in steps()) {
        let mut table = Inodes::with_hash(Key::root(), |key| XxHash3_64::oneshot(key) % 4);
        let mut told = vec![Told { ino: Inode::ROOT, key: Key::root(), parent: Key::root(), lookups: 1 }];
        for step in steps {
            match step {
                Step::Remember { parent, name, directory } => {
                    let parents: Vec<_> = told.iter().filter(|t| t.key.is_prefix() && t.lookups > 0).collect();
                    let parent = parents[parent % parents.len()];
                    let (parent_ino, parent_key) = (parent.ino, parent.key.clone());
                    let key = parent_key.join(&[b'a' + name]).join(if directory { b"/" } else { b"" });
                    let ino = table.remember(parent_ino, &key);
                    match told.iter_mut().find(|t| t.key == key) {
                        Some(known) => {
                            prop_assert_eq!(known.ino, ino);
                            known.lookups += 1;
                        }
                        None => {
                            prop_assert!(told.iter().all(|t| t.ino != ino), "a number of another key was handed out");
                            told.push(Told { ino, key, parent: parent_key, lookups: 1 });
                        }
                    }
                }
                Step::Forget { which, n } => {
                    let index = which % told.len();
                    let n = n.min(told[index].lookups);
                    table.forget(told[index].ino, n);
                    if index > 0 {
                        told[index].lookups -= n;
                    }
                    while let Some(gone) = told.iter().position(|t| t.lookups == 0 && told.iter().all(|c| c.parent != t.key)) {
                        told.remove(gone);
                    }
                }
            }
            prop_assert_eq!(table.len(), told.len());
            for t in &told {
                let node = table.get(t.ino).expect("the kernel still knows it");
                prop_assert_eq!(&node.key, &t.key);
                prop_assert_eq!(table.number(&t.key), t.ino);
            }
        }
    }
}
