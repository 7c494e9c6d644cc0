package oci

import (
	"bytes"
	"compress/gzip"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
)

// escape is a known container escape through a runtime.
type escape struct {
	id, what string
	fixed    []string // first fixed version of each release line that got a fix, oldest first
}

// knownEscapes lists the escapes in the runtimes' own advisories and change logs, up to October 2026. It leaves out those
// that need a feature that Berth never uses (crun's krun handler, CVE-2025-24965; a node without its own /dev,
// CVE-2026-88264 and CVE-2026-88265), those that Launch refuses before the runtime sees them (an image with a linked
// /dev, CVE-2026-41579), and those that raise rights only inside (inheritable capabilities, CVE-2022-29162).
func knownEscapes(runtime string) []escape {
	switch runtime {
	case runc:
		return []escape{
			{"CVE-2019-5736", "a node can overwrite the runtime's program on the host", []string{"1.0.0-rc7"}},
			{"CVE-2021-30465", "links swapped during start lead mounts out of the root", []string{"1.0.0-rc95"}},
			{"CVE-2024-21626", "a leaked folder of the host as working directory", []string{"1.1.12"}},
			{"CVE-2025-31133", "a replaced /dev/null turns masked paths into writable ones", []string{"1.2.8", "1.3.3", "1.4.0-rc.3"}},
			{"CVE-2025-52565", "a replaced terminal is mounted over /dev/console", []string{"1.2.8", "1.3.3", "1.4.0-rc.3"}},
			{"CVE-2025-52881", "writes to /proc are led to other files of it", []string{"1.2.8", "1.3.3", "1.4.0-rc.3"}},
		}
	case crun:
		return []escape{
			{"CVE-2019-18837", "links in an image lead mounts out of the root", []string{"0.10.5"}},
		}
	}
	return nil
}

// escapes returns a sentence for each known container escape that is not fixed in this runtime. Distributions fix escapes
// without a new version, so a fix that the Debian package's change log names counts.
func escapes(r Runtime) []string {
	mended := debianChangelog(r)
	var unfixed []string
	for _, e := range knownEscapes(r.Name) {
		if fixedIn(r.Version, e.fixed) || bytes.Contains(mended, []byte(e.id)) {
			continue
		}
		unfixed = append(unfixed, e.id+": "+e.what+"; fixed in "+r.Name+" "+strings.Join(e.fixed, ", "))
	}
	return unfixed
}

// debianChangelog returns the change log of the Debian package runc or crun if the runtime is from that package. It returns
// nil if there is none (another distribution, a file of no package, documentation left out). It reads dpkg's files,
// because dpkg-query --search takes seconds on a busy host.
func debianChangelog(r Runtime) []byte {
	list, err := os.ReadFile("/var/lib/dpkg/info/" + r.Name + ".list")
	if err != nil || !slices.Contains(strings.Split(string(list), "\n"), r.Path) {
		return nil
	}
	f, err := os.Open("/usr/share/doc/" + r.Name + "/changelog.Debian.gz")
	if err != nil {
		return nil
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		return nil
	}
	text, err := io.ReadAll(io.LimitReader(z, 8<<20))
	if err != nil {
		return nil
	}
	return text
}

// fixedIn reports whether a version has a fix that came with the versions fixed: it is at least the fixed version of its
// own release line (1.2.9 has the fix of 1.2.8, 1.3.0 has not), or newer than the last one.
func fixedIn(version string, fixed []string) bool {
	if version == "" {
		return false
	}
	last := fixed[len(fixed)-1]
	if compareVersions(version, last) >= 0 {
		return true
	}
	for _, f := range fixed {
		if releaseLine(version) == releaseLine(f) && compareVersions(version, f) >= 0 {
			return true
		}
	}
	return false
}

// releaseLine returns the release line of a version: 1.2 for 1.2.8.
func releaseLine(version string) string {
	parts := strings.SplitN(version, ".", 3)
	return strings.Join(parts[:min(2, len(parts))], ".")
}

// compareVersions compares two versions like 1.4.0-rc.3 and 1.1.5+ds1. A release candidate (rc) comes before its release;
// a suffix after + does not count.
func compareVersions(a, b string) int {
	an, ac := splitVersion(a)
	bn, bc := splitVersion(b)
	for i := range max(len(an), len(bn)) {
		if d := part(an, i) - part(bn, i); d != 0 {
			return d
		}
	}
	return ac - bc
}

// splitVersion returns the numbers of a version and the number of its release candidate (1<<30 for a release).
func splitVersion(v string) (numbers []int, candidate int) {
	v, _, _ = strings.Cut(strings.TrimPrefix(v, "v"), "+")
	v, rc, isRC := strings.Cut(v, "-")
	for part := range strings.SplitSeq(v, ".") {
		n, _ := strconv.Atoi(part)
		numbers = append(numbers, n)
	}
	if !isRC {
		return numbers, 1 << 30
	}
	n, _ := strconv.Atoi(strings.TrimLeft(rc, "rc."))
	return numbers, n
}

func part(numbers []int, i int) int {
	if i < len(numbers) {
		return numbers[i]
	}
	return 0
}
