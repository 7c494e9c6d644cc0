package bench

import (
	"fmt"
	"os"
	"strings"
)

// emulation says what emulates the CPU, "" where a CPU runs the instructions itself (in a virtual machine too). QEMU's
// emulator calls its CPUs by its own name (target/i386/cpu.c), unless it was told to pretend.
func emulation(cpu string) string {
	if strings.Contains(cpu, "QEMU TCG") || strings.Contains(cpu, "QEMU Virtual CPU") {
		return "QEMU, " + cpu
	}
	return ""
}

// Emulation says what emulates the machine's CPU, "" where nothing does.
func (m Machine) Emulation() string { return emulation(m.CPU) }

// emulatedFirst begins a report that was made on an emulated machine.
func emulatedFirst(b *strings.Builder, m Machine) {
	if by := m.Emulation(); by != "" {
		wrap(b, "", "EMULATED ("+by+"): these speeds are not those of real hardware.")
	}
}

// firstLine names the machine of a piece of evidence, an emulated one as such: before all else that is printed.
func (m Machine) firstLine(host string) string {
	if host == "" {
		host, _ = os.Hostname()
	}
	what := "machine"
	if emulation(m.CPU) != "" {
		what = "EMULATED machine, its speeds are not those of hardware:"
	}
	return fmt.Sprintf("%s %s: %s, %d cores, Linux %s", what, host, orDash(m.CPU), m.Cores, m.Kernel)
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
