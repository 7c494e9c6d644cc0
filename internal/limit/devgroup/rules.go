package devgroup

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// deviceRule is one line of a device list. access holds the kernel's bits (unix.BPF_DEVCG_ACC_*).
type deviceRule struct {
	block        bool
	major, minor uint32
	anyMinor     bool
	access       uint32
}

// accessLetters are in the kernel's order; accessBits are their bits.
const accessLetters = "rwm"

func accessBits() []uint32 {
	return []uint32{unix.BPF_DEVCG_ACC_READ, unix.BPF_DEVCG_ACC_WRITE, unix.BPF_DEVCG_ACC_MKNOD}
}

// String is the rule as the kernel writes it: "b 8:16 rw", "c 136:* rw".
func (r deviceRule) String() string {
	kind, minor := "c", strconv.FormatUint(uint64(r.minor), 10)
	if r.block {
		kind = "b"
	}
	if r.anyMinor {
		minor = "*"
	}
	var access strings.Builder
	for i, bit := range accessBits() {
		if r.access&bit != 0 {
			access.WriteByte(accessLetters[i])
		}
	}
	return fmt.Sprintf("%s %d:%s %s", kind, r.major, minor, &access)
}

func parseRule(text string) (deviceRule, error) {
	f := strings.Fields(text)
	bad := func() (deviceRule, error) { return deviceRule{}, fmt.Errorf("device rule %q is none", text) }
	if len(f) != 3 || f[0] != "b" && f[0] != "c" {
		return bad()
	}
	r := deviceRule{block: f[0] == "b"}
	majorText, minorText, _ := strings.Cut(f[1], ":")
	major, err := strconv.ParseUint(majorText, 10, 32)
	if err != nil {
		return bad()
	}
	minor, err := strconv.ParseUint(minorText, 10, 32)
	if r.anyMinor = minorText == "*"; err != nil && !r.anyMinor {
		return bad()
	}
	r.major, r.minor = uint32(major), uint32(minor)
	for i, bit := range accessBits() {
		if strings.IndexByte(f[2], accessLetters[i]) >= 0 {
			r.access |= bit
		}
	}
	return r, nil
}

// deviceRules returns the rules for the standard devices and those in allow, sorted. There is one rule for each device
// number, because a single rule must allow all accesses that one open asks for.
func deviceRules(allow []string) ([]deviceRule, error) {
	var all []deviceRule
	for _, text := range slices.Concat(standardDevices(), allow) {
		r, err := parseRule(text)
		if err != nil {
			return nil, err
		}
		all = addRule(all, r)
	}
	return sortRules(all), nil
}

// same reports whether two rules are for the same device number.
func (r deviceRule) same(o deviceRule) bool {
	r.access, o.access = 0, 0
	return r == o
}

func addRule(all []deviceRule, r deviceRule) []deviceRule {
	if i := slices.IndexFunc(all, r.same); i >= 0 {
		all[i].access |= r.access
		return all
	}
	return append(all, r)
}

func sortRules(all []deviceRule) []deviceRule {
	slices.SortFunc(all, func(a, b deviceRule) int { return strings.Compare(a.String(), b.String()) })
	return all
}

func ruleTexts(all []deviceRule) string {
	texts := make([]string, len(all))
	for i, r := range all {
		texts[i] = r.String()
	}
	return strings.Join(texts, ", ")
}

// readDevices reads the list of a v1 group. A list that allows all devices is an error.
func readDevices(dir string) ([]deviceRule, error) {
	text, err := os.ReadFile(filepath.Join(dir, "devices.list"))
	if err != nil {
		return nil, fmt.Errorf("read the devices of the node: %w", err)
	}
	var all []deviceRule
	for line := range strings.Lines(string(text)) {
		r, err := parseRule(line)
		if err != nil {
			return nil, fmt.Errorf("read the devices of the node: %w", err)
		}
		all = addRule(all, r)
	}
	return sortRules(all), nil
}

// writeDevices makes the list of a v1 group equal to rules. Access that stays allowed is never interrupted.
func writeDevices(dir string, rules []deviceRule) error {
	write := func(name string, r deviceRule) error {
		if r.access == 0 {
			return nil
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(r.String()), 0); err != nil {
			return fmt.Errorf("change the devices of the node: write %q to %s: %w", r, name, err)
		}
		return nil
	}
	now, err := readDevices(dir)
	if err != nil { // all devices are allowed, as in a new group
		if err := os.WriteFile(filepath.Join(dir, "devices.deny"), []byte("a"), 0); err != nil {
			return fmt.Errorf("close the devices of the node: %w", err)
		}
		now = nil
	}
	for _, is := range now {
		if i := slices.IndexFunc(rules, is.same); i >= 0 {
			is.access &^= rules[i].access
		}
		if err := write("devices.deny", is); err != nil {
			return err
		}
	}
	for _, want := range rules {
		if i := slices.IndexFunc(now, want.same); i >= 0 {
			want.access &^= now[i].access
		}
		if err := write("devices.allow", want); err != nil {
			return err
		}
	}
	return nil
}
