package lab

import (
	"crypto/md5"
	"fmt"
	"strings"

	"berth/test/lab/wire"
)

// arguments returns QEMU's command line for the machine.
func (m *VM) arguments() ([]string, error) {
	cpu := "max"
	if m.boot.accel == "kvm" {
		cpu = "host"
	}
	args := []string{
		"-name", m.Name, "-accel", m.boot.accel, "-machine", "q35", "-cpu", cpu,
		"-smp", fmt.Sprint(m.want.CPUs), "-m", fmt.Sprint(m.want.Memory),
		// QEMU ends when the guest reboots or panics. The harness then starts it again or reports the end.
		"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
		"-kernel", m.boot.kernel, "-initrd", m.boot.initrd, "-append", m.kernelLine(),
		"-qmp", "unix:" + m.file("qmp") + ",server=on,wait=off",
		"-object", "rng-random,id=rng,filename=/dev/urandom", "-device", "virtio-rng-pci,rng=rng",
		"-drive", drive("root", m.file("root"), ""), "-device", "virtio-blk-pci,drive=root,serial=root",
		"-device", "virtio-serial-pci",
	}
	for i := range wire.Ports {
		id := fmt.Sprintf("port%d", i)
		args = append(args, "-chardev", "socket,id="+id+",path="+m.file(id)+",server=on,wait=off",
			"-device", "virtserialport,chardev="+id+",name="+wire.Port(i))
	}
	if m.shell {
		args = append(args, "-chardev", "socket,id=console,path="+m.ConsoleSocket()+",server=on,wait=off,logfile="+m.file("console"))
	} else {
		args = append(args, "-chardev", "file,id=console,append=on,path="+m.file("console"))
	}
	args = append(args, "-serial", "chardev:console")
	args = append(args, m.disks()...)
	nics, err := m.adapters()
	return append(args, nics...), err
}

// kernelLine returns the kernel's command line. Each machine has its own machine id: drivers derive the MACs of virtual
// functions from it, and equal ids would give equal MACs.
func (m *VM) kernelLine() string {
	words := []string{
		"console=ttyS0", "root=/dev/vda", "rw", "quiet", "loglevel=4", "panic=-1", "systemd.hostname=" + m.Name,
		fmt.Sprintf("systemd.machine_id=%x", md5.Sum([]byte(m.Name))),
		"nvme_core.multipath=N", // else an NVMe disk has no I/O scheduler, and neither BFQ nor iocost
	}
	if m.shell {
		words = append(words, "lab.shell")
	}
	return strings.Join(append(words, m.want.Kernel), " ")
}

// drive returns QEMU's option for a disk's file. Flushed data stay in the host's page cache, which survives a killed machine.
func drive(id, file, rate string) string {
	d := "if=none,format=qcow2,cache=unsafe,id=" + id + ",file=" + file
	if rate != "" {
		d += "," + rate
	}
	return d
}

func (m *VM) disks() []string {
	var args []string
	for i, d := range m.want.Disks {
		if d.Hot {
			args = append(args, m.hotDisk(i)...)
			continue
		}
		id := fmt.Sprintf("disk%d", i)
		file := drive(id, m.file(id), d.Rate)
		if d.Root {
			file = "if=none,format=raw,readonly=on,id=" + id + ",file=" + m.boot.root
		}
		args = append(args, "-drive", file, "-device", fmt.Sprintf("%s,drive=%s,serial=%s", d.device(), id, id))
	}
	return args
}

func (m *VM) adapters() ([]string, error) {
	var args []string
	for i, n := range m.want.NICs {
		backend := fmt.Sprintf("hubport,id=nic%d,hubid=%d", i, i) // a hub with no other port
		if n.Segment != "" {
			socket, end, err := m.lab.cable(n.Segment, m.number, i)
			if err != nil {
				return nil, err
			}
			backend = fmt.Sprintf("stream,id=nic%d,addr.type=unix,addr.path=%s,", i, socket) +
				[]string{"server=on", "server=off,reconnect-ms=200"}[end]
		}
		args = append(args, "-netdev", backend,
			// SR-IOV works only below a root port.
			"-device", fmt.Sprintf("pcie-root-port,id=root%d,chassis=%d", i, i+1),
			"-device", fmt.Sprintf("igb,bus=root%d,netdev=nic%d,mac=52:54:00:77:%02x:%02x", i, i, m.number+1, i+1))
	}
	return args, nil
}

func (m *VM) portSockets() []string {
	var all []string
	for i := range wire.Ports {
		all = append(all, m.file(fmt.Sprintf("port%d", i)))
	}
	return all
}

// sockets returns the paths of the sockets that QEMU makes.
func (m *VM) sockets() []string {
	all := append(m.portSockets(), m.file("qmp"))
	if m.shell {
		all = append(all, m.ConsoleSocket())
	}
	return all
}
