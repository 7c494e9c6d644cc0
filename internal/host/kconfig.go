package host

import (
	"bufio"
	"compress/gzip"
	"io"
	"os"
	"strings"
)

// kconfig is the build configuration of the kernel: option without CONFIG_ to "y", "m" or a value. It is nil if the host
// does not publish it.
type kconfig map[string]string

// kconfig reads /proc/config.gz, else /boot/config-RELEASE.
func (h Host) kconfig() kconfig {
	if f, err := os.Open(h.at("/proc/config.gz")); err == nil {
		defer f.Close()
		if z, err := gzip.NewReader(f); err == nil {
			return parseKconfig(z)
		}
	}
	f, err := os.Open(h.at("/boot/config-" + h.text("/proc/sys/kernel/osrelease")))
	if err != nil {
		return nil
	}
	defer f.Close()
	return parseKconfig(f)
}

func parseKconfig(r io.Reader) kconfig {
	k := kconfig{}
	for s := bufio.NewScanner(r); s.Scan(); {
		if option, value, ok := strings.Cut(s.Text(), "="); ok {
			if name, ok := strings.CutPrefix(option, "CONFIG_"); ok {
				k[name] = value
			}
		}
	}
	return k
}

// module returns the state of a missing feature that a module brings, and the remedy.
func (k kconfig) module(option, module string) (State, string) {
	state := k.absent(option)
	if state == Lacks && k != nil {
		return state, "# boot a kernel with CONFIG_" + option
	}
	return state, "modprobe " + module
}

// absent returns the state of a missing feature: Off if the kernel was built with the option (built in, or as a module that
// is not loaded), else Lacks, also if the configuration is unknown.
func (k kconfig) absent(option string) State {
	switch k[option] {
	case "y", "m":
		return Off
	}
	return Lacks
}
