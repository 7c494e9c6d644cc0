package host

import "strings"

// nat checks what mode nat needs, and says what forwarding means for the host.
func (d *doctor) nat() []Check {
	nft := Check{Name: "nft", State: OK, Found: "installed", Why: "carries mode nat: it sets the rules that translate addresses"}
	if !d.exists("/usr/sbin/nft") {
		nft.State, nft.Found, nft.Remedy = Lacks, "no program /usr/sbin/nft", "apt-get install nftables"
	}
	fw := Check{
		Name: "forwarding", State: OK,
		Why: "mode nat needs it: Berth lends it to the interfaces with addresses while such nodes run, for these nodes alone, and sets it back; " +
			"where it is on already, the host is a router for its neighbours too, and its own firewall decides for whom",
	}
	var found []string
	for _, f := range []struct{ name, file string }{
		{"IPv4", "/proc/sys/net/ipv4/ip_forward"}, {"IPv6", "/proc/sys/net/ipv6/conf/all/forwarding"},
	} {
		switch d.text(f.file) {
		case "":
			found = append(found, f.name+" unknown")
		case "0":
			found = append(found, f.name+" off")
		default:
			found = append(found, f.name+" on")
		}
	}
	fw.Found = strings.Join(found, ", ")
	return []Check{nft, fw}
}
