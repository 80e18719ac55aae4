//! The limits of the control groups that the process is in: those of its container.

use std::fs;
use std::path::Path;

/// Where control groups of version 2 are, and those of version 1 below the name of each controller.
/// A container sees its own there.
const ROOT: &str = "/sys/fs/cgroup";

/// A file of a control group, by its path.
type ReadFile<'r> = &'r dyn Fn(&Path) -> Option<String>;

/// A group of version 2, or of a controller of version 1.
#[derive(Debug, Clone, Copy)]
enum Group<'g> {
    V1(&'g Path),
    V2(&'g Path),
}

/// The limit of the process's memory, in bytes, if there is one.
pub fn memory_limit() -> Option<usize> {
    memory_limit_in(&own_groups(), &|path| fs::read_to_string(path).ok())
}

/// The processor time that the process may take, in cores, if that is limited.
pub fn cpu_quota() -> Option<f64> {
    cpu_quota_in(&own_groups(), &|path| fs::read_to_string(path).ok())
}

fn own_groups() -> String {
    fs::read_to_string("/proc/self/cgroup").unwrap_or_default()
}

fn memory_limit_in(groups: &str, read: ReadFile<'_>) -> Option<usize> {
    let bytes = |group: Group<'_>| {
        let text = match group {
            Group::V1(group) => read(&group.join("memory.limit_in_bytes")),
            Group::V2(group) => read(&group.join("memory.max")),
        };
        // `max` is no number, and version 1 has a number that no machine reaches.
        let bytes = text?.trim().parse::<usize>().ok()?;
        Some(bytes).filter(|bytes| *bytes < isize::MAX.unsigned_abs() / 2)
    };
    limits(groups, "memory", bytes).into_iter().min()
}

fn cpu_quota_in(groups: &str, read: ReadFile<'_>) -> Option<f64> {
    let cores = |group: Group<'_>| {
        let text = match group {
            Group::V1(group) => {
                let quota = read(&group.join("cpu.cfs_quota_us"))?;
                format!("{} {}", quota.trim(), read(&group.join("cpu.cfs_period_us"))?)
            }
            Group::V2(group) => read(&group.join("cpu.max"))?,
        };
        let (quota, period) = text.trim().split_once(' ')?;
        // `max`, and -1 of version 1, are no limit.
        let (quota, period) = (quota.parse::<u32>().ok()?, period.parse::<u32>().ok()?);
        (quota > 0 && period > 0).then(|| f64::from(quota) / f64::from(period))
    };
    limits(groups, "cpu", cores).into_iter().min_by(f64::total_cmp)
}

/// The limits of the groups that this process is in, by the lines of `/proc/self/cgroup`: its own group
/// and all above it. Of a group that lies elsewhere, as in a container, the root is that of the
/// container.
fn limits<T>(
    groups: &str,
    controller: &str,
    mut limit: impl FnMut(Group<'_>) -> Option<T>,
) -> Vec<T> {
    let mut found = Vec::new();
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(group)) = (parts.next(), parts.next()) else { continue };
        let is_v2 = controllers.is_empty();
        if !is_v2 && !controllers.split(',').any(|it| it == controller) {
            continue;
        }
        let below = Path::new(group.trim_start_matches('/'));
        for group in below.ancestors() {
            found.extend(match is_v2 {
                true => limit(Group::V2(&Path::new(ROOT).join(group))),
                false => limit(Group::V1(&Path::new(ROOT).join(controller).join(group))),
            });
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reads<'f>(files: &'f [(&str, &str)]) -> impl Fn(&Path) -> Option<String> + 'f {
        |path| {
            let found = files.iter().find(|(name, _)| Path::new(name) == path);
            found.map(|(_, text)| (*text).to_owned())
        }
    }

    /// Reads from these files instead of those of the machine.
    fn of(groups: &str, files: &[(&str, &str)]) -> Option<usize> {
        memory_limit_in(groups, &reads(files))
    }

    #[test]
    fn the_lowest_limit_of_memory_of_the_groups_above_counts() {
        let pod = "0::/kubepods/pod/app\n";
        let v2 = |name: &'static str, bytes| [(name, bytes)];
        assert_eq!(of(pod, &[]), None);
        assert_eq!(of(pod, &v2("/sys/fs/cgroup/memory.max", "max\n")), None);
        assert_eq!(of(pod, &v2("/sys/fs/cgroup/memory.max", "67108864\n")), Some(64 << 20));
        let above = [
            ("/sys/fs/cgroup/kubepods/pod/app/memory.max", "100\n"),
            ("/sys/fs/cgroup/kubepods/pod/memory.max", "50\n"),
            ("/sys/fs/cgroup/kubepods/memory.max", "max\n"),
        ];
        assert_eq!(of(pod, &above), Some(50));
        let v1 = "5:cpu,cpuacct:/\n4:memory:/a\n0::/\n";
        let none = "9223372036854771712\n";
        assert_eq!(of(v1, &v2("/sys/fs/cgroup/memory/a/memory.limit_in_bytes", none)), None);
        assert_eq!(of(v1, &v2("/sys/fs/cgroup/memory/memory.limit_in_bytes", "7")), Some(7));
        assert_eq!(of("nonsense\n:\n", &[]), None);
    }

    #[test]
    fn the_lowest_quota_of_the_groups_above_counts() {
        let of = |groups, files: &[_]| cpu_quota_in(groups, &reads(files));
        let pod = "0::/pod/app\n";
        assert_eq!(of(pod, &[]), None);
        assert_eq!(of(pod, &[("/sys/fs/cgroup/cpu.max", "max 100000\n")]), None);
        assert_eq!(of(pod, &[("/sys/fs/cgroup/cpu.max", "20000 100000\n")]), Some(0.2));
        let above = [
            ("/sys/fs/cgroup/pod/app/cpu.max", "max 100000\n"),
            ("/sys/fs/cgroup/pod/cpu.max", "150000 100000\n"),
        ];
        assert_eq!(of(pod, &above), Some(1.5));
        let v1 = "5:cpu,cpuacct:/a\n4:memory:/b\n";
        let quota = |text| {
            [
                ("/sys/fs/cgroup/cpu/a/cpu.cfs_quota_us", text),
                ("/sys/fs/cgroup/cpu/a/cpu.cfs_period_us", "50000\n"),
            ]
        };
        assert_eq!(of(v1, &quota("25000\n")), Some(0.5));
        assert_eq!(of(v1, &quota("-1\n")), None);
        assert_eq!(of(v1, &quota("many\n")), None);
    }
}
