package lab_test

import (
	"fmt"
	"strings"
	"testing"

	"berth/test/sample"
)

// testRandom starts, stops and kills seven nodes, berth, the runtime and the keeper in random order, several at once.
func testRandom(t *testing.T, a *host) {
	dice := sample.Of(t).Sparse()
	wanted := dice.Rounds(200)
	t.Logf("%d acts", wanted)
	before := strings.Join(a.home(t), "\n")
	for i := range 7 {
		a.OK(t, "berth apply -f "+a.vfNode(t, fmt.Sprintf("n%d", i), fmt.Sprintf("192.0.2.%d", 11+i), ""))
	}
	// Looks all the time for a MAC that two functions of the adapter or two links of the host have.
	a.Write(t, "/root/twice.sh", "while sleep 0.1; do ip link show "+a.pf+" | grep -o 'link/ether [^ ]*' | sort | uniq -d; "+
		"cat /sys/class/net/*/address 2>/dev/null | grep -v 00:00:00:00:00:00 | sort | uniq -d; done >/root/twice\n")
	a.OK(t, "bash /root/twice.sh & echo $! >/root/twice.pid")
	for done := 0; done < wanted; {
		var acts []string
		for range 1 + dice.IntN(3) {
			acts = append(acts, act(dice))
		}
		done += len(acts)
		a.OK(t, strings.Join(acts, "\n")+"\nwait\ntrue")
	}
	if out := a.OK(t, "kill $(cat /root/twice.pid); cat /root/twice"); out != "" {
		t.Errorf("MACs that two had at a time:\n%s", out)
	}
	t.Logf("repair: %s", a.OK(t, "berth repair"))
	for _, vf := range a.vfs(t).VFs {
		t.Logf("%d %q %s", vf.Index, vf.Owner, vf.Link)
	}
	a.OK(t, "berth rm --force n0 n1 n2 n3 n4 n5 n6")
	if after := strings.Join(a.home(t), "\n"); after != before {
		t.Errorf("the functions were\n%s\nand are\n%s", before, after)
	}
	if out := a.OK(t, "ls /run/berth.vfs; ip -o link | grep berth- || true; grep /run/berth /proc/mounts || true"); out != "" {
		t.Errorf("left behind:\n%s", out)
	}
}

// act returns a random act on one of the nodes, as a line of bash that runs in the background.
func act(dice sample.Walk) string {
	node := fmt.Sprintf("n%d", dice.IntN(7))
	wait := fmt.Sprintf("%.2f", dice.Float64()*1.5)
	quiet := " >/dev/null 2>&1 &"
	switch dice.IntN(8) {
	case 0:
		return "berth start " + node + quiet
	case 1:
		return "berth stop " + node + quiet
	case 2, 3: // berth is killed
		return "timeout -s KILL " + wait + " berth start " + node + quiet
	case 4:
		return "timeout -s KILL " + wait + " berth stop " + node + quiet
	case 5: // the node's init is killed
		return "kill -9 $(berth show --json " + node + " | sed -n 's/^  \"pid\": \\([0-9]*\\),/\\1/p')" + quiet
	case 6: // the runtime is killed
		return "{ berth start " + node + " & sleep " + wait + "; pkill -9 -x 'crun|runc'; wait; }" + quiet
	default:
		return "{ sleep " + wait + "; pkill -9 -x berth-keeper; }" + quiet
	}
}
