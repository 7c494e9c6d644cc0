package host

import "strings"

// Doctor checks a host by its files under h and by the results of Try. It only reads files, so that tests can give it an
// archived host.
func Doctor(h Host, tried Tried) []Check {
	d := doctor{Host: h, Tried: tried, built: h.kconfig(), pkg: h.packages()}
	d.facts, d.factsErr = h.Facts()
	var all []Check
	for _, area := range []struct {
		name   string
		checks []Check
	}{
		{"kernel", d.kernel()},
		{"limits", d.limits()},
		{"images and deltas", d.files()},
		{"runtimes", d.runtimes()},
		{"network", d.network()},
		{"virtual machines", d.machines()},
		{"measuring", d.measuring()},
	} {
		for _, c := range area.checks {
			c.Area = area.name
			all = append(all, c)
		}
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
