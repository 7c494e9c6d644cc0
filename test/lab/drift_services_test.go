package lab_test

import (
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/test/lab"
)

// inService begins the scripts: the groups of the service, its processes, and the files in which systemd keeps what Berth has set.
const inService = `T=/sys/fs/cgroup S=$T/system.slice U=$T/system.slice/store.service C=/etc/systemd/system.control/store.service.d
pid=$(systemctl show -P MainPID store); child=$(pgrep -P $pid | head -n 1)
`

// service prints all that the service has of the kernel and of systemd, who are asked here and not by way of berth.
const service = inService + `cd $T/system.slice; grep -Hs '' memory.low store.service/cpu.weight store.service/io.weight store.service/io.bfq.weight store.service/memory.low
systemctl show -p CPUWeight -p IOWeight -p MemoryLow store system.slice
grep -H = $C/*.conf ${C%store*}system.slice.d/*.conf
for p in $pid $child; do cat /proc/$p/cgroup; done
`

// off switches the controllers off in a group and in all below it, the lowest first: the kernel wants that order.
func off(group string) string {
	return "for f in $(find " + group + " -name cgroup.subtree_control | awk '{print length, $0}' | sort -rn | cut -d' ' -f2); do echo '-cpu -io -memory' >$f; done"
}

// served are ways in which another program takes the weights from a service of systemd's: what takes them, and what berth ls says.
var served = []struct {
	name, take string
	says       []string
}{
	{
		"written over in the kernel", "echo 77 >$U/cpu.weight; echo default 77 >$U/io.weight; echo 0 >$U/memory.low; echo 0 >$S/memory.low",
		[]string{`CPUWeight: cpu\.weight is 77, not 1000`, `IOWeight: io\.weight is 77, not 1000`, `MemoryLow: memory\.low is 0, not 20971520`, `MemoryLow of system\.slice: memory\.low is 0, not 20971520`},
	},
	{"BFQ's weight", "echo 77 >$U/io.bfq.weight", []string{`IOWeight: io\.bfq\.weight is 77, not 181`}},
	{
		"set-property", "systemctl set-property store CPUWeight=50 IOWeight=60; systemctl set-property system.slice MemoryLow=0",
		[]string{`CPUWeight is 50, not 1000`, `IOWeight is 60, not 1000`, `MemoryLow of system\.slice is 0, not 20971520`},
	},
	{
		"its controllers are switched off above it", off("$S"),
		[]string{`CPUWeight: the cgroup \S*/system\.slice hands cpu on no more`, `IOWeight: the cgroup \S*/system\.slice hands io on no more`, `MemoryLow: the cgroup \S*/system\.slice hands memory on no more`},
	},
	{
		"its controllers are switched off in the whole tree", off("$T"),
		[]string{`CPUWeight: the cgroup \S*/cgroup hands cpu on no more`, `MemoryLow of system\.slice: the cgroup \S*/cgroup hands memory on no more`},
	},
	{"set-property for now", "systemctl set-property --runtime store CPUWeight=50", []string{`CPUWeight is 50, not 1000`}},
	{
		"files removed and edited", "rm $C/50-CPUWeight.conf; sed -i s/1000/10/ $C/50-IOWeight.conf",
		[]string{`CPUWeight: \S*50-CPUWeight\.conf is gone`, `IOWeight: \S*50-IOWeight\.conf has "10"`},
	},
	{
		"files removed and edited, and loaded anew", "rm -r $C/50-CPUWeight.conf /run/systemd/system.control/store.service.d; sed -i s/1000/10/ $C/50-IOWeight.conf; systemctl daemon-reload",
		[]string{`CPUWeight is \[not set\], not 1000`, `IOWeight is 10, not 1000`},
	},
	{"revert", "systemctl revert store", []string{`CPUWeight is \[not set\], not 1000`, `MemoryLow is \[?\S+\]?, not 20971520`}},
	{"its processes are moved", "echo $pid >$T/cgroup.procs; echo $child >$T/cgroup.procs", []string{`process \d+ "sleep" from / of v2, process \d+ "sleep" from / of v2`}},
	{"its child is moved", "echo $child >$T/cgroup.procs", []string{`process \d+ "sleep" from / of v2`}},
	{
		"its process is taken into a scope",
		"busctl -q call org.freedesktop.systemd1 /org/freedesktop/systemd1 org.freedesktop.systemd1.Manager StartTransientUnit 'ssa(sv)a(sa(sv))' taken.scope fail 1 PIDs au 1 $pid 0; " +
			"while awaiting; do grep -q taken.scope /proc/$pid/cgroup && exit; done; exit 1",
		[]string{`process \d+ "sleep" from /system\.slice/taken\.scope of v2`},
	},
}

// harmless is what takes nothing from a service.
var harmless = []string{"systemctl restart store", "systemctl daemon-reload", "systemctl stop store; berth ls; systemctl start store", "systemctl kill -s KILL store; while awaiting; do test $(systemctl show -P MainPID store) != 0 && exit; done; exit 1"}

func servicesDrift(t *testing.T, m *lab.VM) {
	m.OK(t, `printf '[Service]\nExecStart=/bin/sh -c "sleep 3001 & exec sleep 3002"\nRestart=always\n' >/etc/systemd/system/store.service; systemctl daemon-reload; systemctl start store`)
	m.OK(t, "berth protect store --memory-low 20MiB")
	t.Cleanup(func() { m.OK(t, "berth unprotect store; systemctl stop store") })
	before := m.OK(t, service)
	t.Logf("the kernel and systemd have:\n%s", before)
	for i, s := range served {
		t.Run("unit/"+s.name, func(t *testing.T) {
			regained(t, m, "store", before, service, inService+s.take, s.says, []string{"berth protect store", "berth repair"}[i%2])
		})
	}
	for _, does := range harmless {
		if r := m.Try(t, does+"; berth ls"); r.Code != 0 || strings.Contains(r.Out, "LIMITS-LOST") {
			t.Errorf("%s takes nothing, berth ls: %s%s", does, r.Out, r.Err)
		}
		if d := cmp.Diff(before, m.OK(t, service)); d != "" {
			t.Errorf("after %s (-before +after):\n%s", does, d)
		}
	}

	// What systemd itself keeps off is nobody's drift: the message has the remedy, and a service that it concerns is not protected.
	const disabled = "systemctl set-property --runtime system.slice DisableControllers='cpu pids'; "
	r := m.Try(t, inService+"berth unprotect store; "+off("$S")+"; berth protect store --memory-low 20MiB; berth ls")
	if d := cmp.Diff(before, m.OK(t, service)); d != "" || r.Code != 0 || strings.Contains(r.Out, "LIMITS-LOST") {
		t.Errorf("its controllers were off before it was protected: exit code %d: %s%s (-want +got):\n%s", r.Code, r.Out, r.Err, d)
	}
	for name, script := range map[string]string{
		"protect":         "berth unprotect store; " + disabled + "berth protect store --memory-low 20MiB",
		"what has it all": disabled + "berth ls; berth repair",
	} {
		r := m.Try(t, script)
		_, remedy, _ := strings.Cut(r.Err, "systemctl set-property -- system.slice DisableControllers=")
		if remedy, _, _ = strings.Cut(remedy, "\n"); r.Code != 3 || remedy != ` DisableControllers="pids"; berth protect store.service` || strings.Contains(r.Out, "LIMITS-LOST") == (name == "protect") {
			t.Errorf("%s, and a slice keeps cpu off: exit code %d: %s%s", name, r.Code, r.Out, r.Err)
		}
		m.OK(t, "systemctl set-property -- system.slice DisableControllers="+remedy+" --memory-low 20MiB")
		m.OK(t, "rm -f /*/systemd/system.control/system.slice.d/50-DisableControllers.conf; systemctl daemon-reload")
		if d := cmp.Diff(before, m.OK(t, service)); d != "" {
			t.Errorf("%s, after the remedy (-before +after):\n%s", name, d)
		}
	}

	t.Run("process", func(t *testing.T) {
		// Beside another process, in a group that is no unit's.
		m.OK(t, "mkdir /sys/fs/cgroup/any; setsid sh -c 'echo $$ >/sys/fs/cgroup/any/cgroup.procs; sleep 4003 & sleep 4001 & exec sleep 4002' </dev/null >/dev/null 2>&1 & while awaiting; do pgrep -f '^sleep 4001' && pgrep -f '^sleep 4002' && exit; done; exit 1")
		in := "T=/sys/fs/cgroup pid=" + m.OK(t, "pgrep -f '^sleep 4002'") + " child=" + m.OK(t, "pgrep -f '^sleep 4001'") + "; U=$T/berth.pid.$pid\n"
		m.OK(t, in+"(echo $BASHPID >$T/any/cgroup.procs; exec sleep 4004) >/dev/null 2>&1 & while awaiting; do pgrep -f '^sleep 4004' && break; done; berth protect $pid; pkill -f '^sleep 4004'")
		look := in + "grep -Hs '' $U/cpu.weight $U/io.weight $U/io.bfq.weight; cat /proc/$pid/cgroup /proc/$child/cgroup\n"
		before := m.OK(t, look)
		t.Logf("the kernel has:\n%s", before)
		for i, s := range []struct{ name, take, says string }{
			{"its weights are written over", "echo 77 >$U/cpu.weight; echo 77 >$U/io.bfq.weight", `cpu is 77, not weight 1000.*io is 77, not weight 1000`},
			{"it is moved", "echo $pid >$T/cgroup.procs", `process \d+ is in / of v2: somebody else moved it`},
			{"its child is moved back", "echo $child >$T/any/cgroup.procs", `process \d+ is in /any of v2: somebody else moved it`},
			{"its group is removed", "for p in $(cat $U/cgroup.procs); do echo $p >$T/cgroup.procs; done; rmdir $U", `is gone from`},
			{"its group is made anew", "for p in $(cat $U/cgroup.procs); do echo $p >$T/cgroup.procs; done; rmdir $U; mkdir $U", `is gone from`},
		} {
			t.Run(s.name, func(t *testing.T) {
				regained(t, m, "$pid", before, look, in+s.take, []string{s.says}, in+[]string{"berth protect $pid", "berth repair"}[i%2])
			})
		}
		m.OK(t, in+"berth unprotect $pid; kill $pid $child; pkill -f '^sleep 4003'; while awaiting; do rmdir $T/any && exit; done; exit 1")
	})

	t.Run("cgroup", func(t *testing.T) {
		const in = "T=/sys/fs/cgroup U=$T/up/mine\n"
		m.OK(t, in+"mkdir -p $U; echo '+cpu +io' >$T/up/cgroup.subtree_control; berth protect $U")
		const look = in + "grep -Hs '' $U/cpu.weight $U/io.weight $U/io.bfq.weight\n"
		before := m.OK(t, look)
		for i, s := range []struct{ name, take, says string }{
			{"its weight is written over", "echo 77 >$U/cpu.weight", `cpu is 77, not weight 1000`},
			{"it is made anew", "rmdir $U; mkdir $U", `somebody else made it anew`},
			{"its controllers are switched off, and on again", "echo '-cpu -io' >$T/up/cgroup.subtree_control; echo '+cpu +io' >$T/up/cgroup.subtree_control", `cpu is 100, not weight 1000`},
		} {
			t.Run(s.name, func(t *testing.T) {
				regained(t, m, "/up/mine", before, look, in+s.take, []string{s.says}, []string{"berth protect /up/mine", "berth repair"}[i%2])
			})
		}
		// The group above it is not Berth's: the message has the remedy.
		r := m.Try(t, in+"echo '-cpu -io' >$T/up/cgroup.subtree_control; berth ls; berth repair")
		if !strings.Contains(r.Out, "LIMITS-LOST") || r.Code != 3 || !strings.Contains(r.Err, "echo +cpu >/sys/fs/cgroup/up/cgroup.subtree_control; berth repair") {
			t.Errorf("its controllers are off: exit code %d: %s%s", r.Code, r.Out, r.Err)
		}
		m.OK(t, in+"echo '+cpu +io' >$T/up/cgroup.subtree_control; berth repair")
		if d := cmp.Diff(before, m.OK(t, look)); d != "" {
			t.Errorf("its controllers are on again (-before +after):\n%s", d)
		}
		m.OK(t, "berth unprotect /up/mine; rmdir /sys/fs/cgroup/up/mine /sys/fs/cgroup/up")
	})
}

// regained checks that ls and protect --dry-run see what a script takes from a service and change nothing, and that it has all again
// after a command.
func regained(t *testing.T, m *lab.VM, name, before, look, take string, says []string, command string) {
	t.Helper()
	in, _, _ := strings.Cut(command, "berth ")
	if r := m.Try(t, take); r.Code != 0 {
		t.Errorf("%s\n%s%s", take, r.Out, r.Err)
		return
	}
	lost := m.Try(t, look)
	r := m.Try(t, in+"berth ls; berth protect "+name+" --dry-run")
	ls := strings.Join(strings.Fields(r.Out), " ")
	for _, s := range says {
		if r.Code != 0 || !strings.Contains(ls, "LIMITS-LOST") || !regexp.MustCompile(s).MatchString(ls) {
			t.Errorf("want LIMITS-LOST and %s; ls and protect --dry-run: exit code %d: %s%s", s, r.Code, r.Out, r.Err)
		}
	}
	if d := cmp.Diff(lost.Out, m.Try(t, look).Out); d != "" {
		t.Errorf("who only looks changed something (-before +after):\n%s", d)
	}
	r = m.Try(t, command)
	if r.Code != 0 || !strings.Contains(strings.Join(strings.Fields(r.Out+r.Err), " "), "given back what another program had changed: ") {
		t.Errorf("%s: exit code %d: %s%s", command, r.Code, r.Out, r.Err)
	}
	after := m.Try(t, look)
	if d := cmp.Diff(strings.Split(before, "\n"), strings.Split(strings.TrimSuffix(after.Out, "\n"), "\n")); d != "" {
		t.Errorf("after %s (-before +after): %s\n%s", command, after.Err, d)
	}
	if r = m.Try(t, "berth ls"); r.Code != 0 || strings.Contains(r.Out, "LIMITS-LOST") {
		t.Errorf("afterwards ls: exit code %d: %s%s", r.Code, r.Out, r.Err)
	}
}
