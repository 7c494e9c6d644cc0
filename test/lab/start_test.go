package lab_test

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// testStart types the lines of docs/start.md that need an adapter with virtual functions, and compares what they print. The other
// host has a DHCP server on the wire.
func testStart(t *testing.T, a, b *host) {
	page, err := os.ReadFile("../../docs/start.md")
	if err != nil {
		t.Fatal(err)
	}
	b.OK(t, "ip addr add 192.0.2.1/24 dev "+b.pf+"; touch /run/leases; printf '%s\\n' 'interface "+b.pf+
		"' 'start 192.0.2.50' 'end 192.0.2.60' 'opt subnet 255.255.255.0' 'lease_file /run/leases' >/run/udhcpd.conf; "+
		"(busybox udhcpd -f -S /run/udhcpd.conf & echo $! >/run/udhcpd.test) >/dev/null 2>&1")
	defer b.OK(t, "kill $(cat /run/udhcpd.test); rm /run/udhcpd.test /run/udhcpd.conf /run/leases; ip addr flush dev "+b.pf)
	typed := 0
	printed := ""
	for _, block := range regexp.MustCompile("(?ms)^```(sh vf|text vf)\n(.*?)^```$").FindAllStringSubmatch(string(page), -1) {
		text := strings.ReplaceAll(block[2], "eth1", a.pf)
		if block[1] == "text vf" {
			parts := strings.Split(strings.TrimSpace(text), "…")
			for i := range parts {
				parts[i] = regexp.QuoteMeta(parts[i])
			}
			if !regexp.MustCompile(`(?s)^` + strings.Join(parts, ".*") + `$`).MatchString(printed) {
				t.Errorf("it prints\n%s\nthe page says\n%s", printed, text)
			}
			continue
		}
		for _, line := range regexp.MustCompile(`(?ms)^[^\n]*<<'END'\n.*?^END$|^[^\n]+$`).FindAllString(text, -1) {
			printed = a.OK(t, "cd /root; "+line)
			typed++
		}
	}
	if typed < 5 {
		t.Errorf("%d lines were typed", typed)
	}
	if out := a.OK(t, "berth ls; rm /root/wire.yaml"); strings.Contains(out, "wire") {
		t.Errorf("something is left:\n%s", out)
	}
}
