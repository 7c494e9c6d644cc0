package host

import (
	"strings"

	"berth/internal/refuse"
)

// State is the result of a check. Each state other than OK needs a different kind of remedy.
type State string

// The states.
const (
	OK     State = "ok"
	Lacks  State = "lacks"  // not there: not built, not installed, no such hardware
	Off    State = "off"    // there, but switched off, not loaded, or set differently
	Broken State = "broken" // there and on, but it does not work, or is known to be unsafe
)

// Check is one requirement of Berth on a host, and what was found. It is data; Text and Brief print it.
type Check struct {
	Area      string `json:"area"` // heading under which it is printed
	Name      string `json:"name"`
	State     State  `json:"state"`
	Found     string `json:"found"`
	Wanted    string `json:"wanted,omitempty"` // empty if Found says enough
	Why       string `json:"why"`              // what a user loses without it
	Remedy    string `json:"remedy,omitempty"` // shell commands to paste, one per line; empty if there is none
	Mandatory bool   `json:"mandatory"`        // no node runs without it
}

// The areas, in the order of a report.
const (
	areaKernel    = "kernel"
	areaCgroups   = "limits"
	areaFiles     = "images and deltas"
	areaRuntimes  = "runtimes"
	areaNetwork   = "network"
	areaMachines  = "virtual machines"
	areaMeasuring = "measuring"
)

// Doctor checks a host by its files under h and by the results of Try. It only reads files, so that tests can give it an
// archived host.
func Doctor(h Host, tried Tried) []Check {
	d := doctor{Host: h, Tried: tried, built: h.kconfig(), pkg: h.packages()}
	d.facts, d.factsErr = h.Facts()
	var all []Check
	for _, area := range []func() []Check{d.kernel, d.limits, d.files, d.runtimes, d.network, d.machines, d.measuring} {
		all = append(all, area()...)
	}
	return all
}

// doctor holds the data that the checks share.
type doctor struct {
	Host
	Tried
	facts    Facts
	factsErr error
	built    kconfig
	pkg      packages
}

// Missing returns the mandatory checks that are not ok.
func Missing(checks []Check) []Check {
	var m []Check
	for _, c := range checks {
		if c.Mandatory && c.State != OK {
			m = append(m, c)
		}
	}
	return m
}

// Refusal returns nil if nothing mandatory is missing, else an error that says why this host cannot run nodes (exit 3).
func Refusal(checks []Check) error {
	missing := Missing(checks)
	if len(missing) == 0 {
		return nil
	}
	names := make([]string, len(missing))
	for i, c := range missing {
		names[i] = c.Name
	}
	return refuse.Cannotf("berth doctor says what to do", "this host cannot run nodes: %s", strings.Join(names, ", "))
}

// packages knows the command that installs packages on this distribution; "" if the distribution is not known.
type packages struct {
	install string
}

// packages finds the host's package tool by os-release(5).
func (h Host) packages() packages {
	var ids []string
	for line := range strings.Lines(h.text("/etc/os-release")) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		if key == "ID" || key == "ID_LIKE" {
			ids = append(ids, strings.Fields(strings.Trim(value, `"'`))...)
		}
	}
	for _, id := range ids {
		switch id {
		case "debian", "ubuntu":
			return packages{"apt-get install -y"}
		case "rhel", "fedora", "centos":
			return packages{"dnf install -y"}
		case "suse", "opensuse":
			return packages{"zypper install -y"}
		}
	}
	return packages{}
}

// get returns the command that installs a package, or a sentence if the distribution is not known.
func (p packages) get(name string) string {
	if p.install == "" {
		return "# install the package " + name
	}
	return p.install + " " + name
}
