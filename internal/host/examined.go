package host

import "strings"

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
