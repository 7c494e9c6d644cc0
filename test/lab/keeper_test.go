package lab_test

import (
	"strings"
	"testing"

	"berth/test/lab"
)

// TestKeeper checks how ends of nodes are noticed, on a kernel that gives the exit code to the parent only (before 6.15).
func TestKeeper(t *testing.T) {
	t.Parallel()
	m := start(t, lab.Machine{CPUs: 1, Memory: 768})
	apply := func(t *testing.T, spec string) {
		t.Helper()
		m.Write(t, "/root/node.yaml", spec)
		m.OK(t, "berth apply -f /root/node.yaml")
	}
	killKeeper := "test $(pgrep -cx berth-keeper) = 1; pkill -9 -x berth-keeper"
	await := func(t *testing.T, name, state string) shown {
		t.Helper()
		m.OK(t, "while awaiting; do berth ls | grep -q '^"+name+" *"+state+"' && exit; done; berth ls; exit 1")
		return show(t, m, name)
	}

	t.Run("streams", func(t *testing.T) { streams(t, m) })

	t.Run("exit code", func(t *testing.T) {
		apply(t, "name: e1\nimage: host\ncommand: [sh, -c, 'sleep 1; exit 42']\n")
		if s := await(t, "e1", "exited"); s.Exit == nil || s.Exit.Unknown || s.Exit.Code != 42 {
			t.Errorf("exit: %+v", s.Exit)
		}
		m.OK(t, "berth rm e1")
	})

	t.Run("signal", func(t *testing.T) {
		apply(t, "name: e2\nimage: host\ncommand: [sleep, '1000']\n")
		m.OK(t, "pkill -9 -f '^sleep 1000'")
		if s := await(t, "e2", "exited"); s.Exit == nil || s.Exit.Signal != "SIGKILL" || s.Exit.OOM {
			t.Errorf("exit: %+v", s.Exit)
		}
		m.OK(t, "berth rm e2")
	})

	t.Run("keeper killed", func(t *testing.T) {
		apply(t, "name: e3\nimage: host\ncommand: [sleep, '1000']\nnetwork: [{name: eth0, mode: bridge, address: [10.9.0.2/24]}]\n")
		m.OK(t, killKeeper)
		m.OK(t, "berth exec e3 -- true; berth repair; test $(pgrep -cx berth-keeper) = 1")
		m.OK(t, "pkill -9 -f '^sleep 1000'")
		// The new keeper is not its parent. It sees the exit code if it looks before process 1 of the host reaps the
		// node's; else it does not pretend to know.
		if s := await(t, "e3", "exited"); s.Exit == nil || !s.Exit.Unknown && s.Exit.Code != 137 {
			t.Errorf("exit: %+v", s.Exit)
		}
		m.OK(t, "! test -e /run/berth/bridge; ! test -e /sys/fs/cgroup/berth; berth rm e3")
	})

	t.Run("killed, and the node ended unseen", func(t *testing.T) {
		apply(t, "name: e4\nimage: host\ncommand: [sleep, '1000']\n")
		m.OK(t, killKeeper+"; pkill -9 -f '^sleep 1000'; while awaiting; do pgrep -f '^sleep 1000' || exit 0; done; exit 1")
		if out := m.OK(t, "berth ls 2>&1"); !strings.Contains(out, "it is started again; ended meanwhile: 1") || !strings.Contains(out, "exited unknown, between ") && !strings.Contains(out, "exited 137") {
			t.Errorf("ls: %s", out)
		}
		m.OK(t, "berth repair; berth start e4")
		if s := show(t, m, "e4"); s.State != "running" {
			t.Errorf("after start: %+v", s)
		}
		m.OK(t, "berth rm --force e4")
	})

	t.Run("killed, and the node writes on", func(t *testing.T) {
		apply(t, `name: e7
image: host
command: [sh, -c, 'i=0; while [ $i -lt 20000 ]; do i=$((i+1)); echo "line $i" >/dev/stdout; done; exec sleep 1000']
`)
		m.OK(t, killKeeper+`; pid=$(cat /run/berth/nodes/e7/pid)
			while awaiting; do read call fd rest </proc/$pid/syscall; [ "$call $fd" = "1 0x1" ] && break; done; [ "$call $fd" = "1 0x1" ]
			berth show e7 2>&1 >/dev/null | grep -q "it is started again"`)
		m.OK(t, `while awaiting; do [ "$(berth logs -n 1 e7)" = "line 20000" ] && break; done
			berth logs e7 >/tmp/got; seq -f "line %.0f" 20000 | cmp - /tmp/got; berth rm --force e7`)
	})

	t.Run("a slow start", func(t *testing.T) {
		m.Write(t, "/root/node.yaml", "name: e6\nimage: host\ncommand: [sleep, '1000']\n")
		// The keeper waits for a command that takes its time: it is the init's parent to the end.
		m.OK(t, `berth apply -f /root/node.yaml & pid=$!
			until [ -s /run/berth/nodes/e6/pid ]; do :; done; kill -STOP $pid; sleep 2; kill -CONT $pid; wait $pid
			test $(ps -o ppid= -p $(cat /run/berth/nodes/e6/pid)) = $(pgrep -x berth-keeper)
			berth rm --force e6`)
	})

	t.Run("restart on failure", func(t *testing.T) {
		apply(t, "name: e5\nimage: host\nrestart: on-failure\ncommand: [sh, -c, 'sleep 1; exit 1']\n")
		m.OK(t, `while awaiting; do [ $(berth show --json e5 | sed -n 's/.*"restarts": *\([0-9]*\).*/\1/p;') -ge 1 ] 2>/dev/null && exit; done; berth show e5; exit 1`)
		m.OK(t, "berth rm --force e5")
	})

	t.Run("foreground run killed", func(t *testing.T) {
		m.OK(t, `berth run --image host -- sleep 1000 </dev/null >/dev/null 2>&1 &
			pid=$!; while awaiting; do pgrep -f '^sleep 1000' && break; done; kill -9 $pid
			while awaiting; do pgrep -f '^sleep 1000' || [ -e /sys/fs/cgroup/berth ] || exit 0; done; exit 1`)
	})
	m.OK(t, "while awaiting; do pgrep -x berth-keeper || exit 0; done; exit 1") // the keeper ends after the last node
}
