package nat

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"

	"berth/internal/host/netif"
	"berth/internal/sys/fault"
	"berth/internal/sys/file"
	"berth/internal/sys/jsonfile"
	"berth/internal/sys/step"
)

// sysctlFile is the file of a setting below net, of the calling thread's network namespace.
func sysctlFile(key string) string { return filepath.Join("/proc/sys/net", key) }

// setting is a setting of the host that Berth changed.
type setting struct {
	Key string `json:"key"` // below /proc/sys/net
	Old string `json:"old"`
	New string `json:"new"`
}

// loan records the host's settings of forwarding before Berth changed them, and the roots that need the change. There is one
// per host, whatever the root: the last root gives the settings back.
type loan struct {
	Boot string    `json:"boot"`
	By   []string  `json:"by"` // folders that exist as long as their root has nodes of mode nat
	Was  []setting `json:"was"`
}

// loanPath is the file of the loan: a network namespace has settings of its own.
func (p Places) loanPath() string { return fmt.Sprintf("%s.%d", p.Forward, netns()) }

func (p Places) loanFile() jsonfile.File {
	return jsonfile.File{
		Path: p.loanPath(), Is: "what the host forwarded before Berth changed it",
		Remedy: "stop the nodes of mode nat, set net.ipv4.conf.*.forwarding as you want it, and remove the file",
	}
}

// readLoan returns the loan, without roots that are gone; an empty one if there is none, or if it is of another boot.
func (p Places) readLoan() (*loan, error) {
	here, err := step.BootID()
	if err != nil {
		return nil, err
	}
	now := &loan{Boot: here}
	var l loan
	if err := p.loanFile().Read(&l); errors.Is(err, fs.ErrNotExist) {
		return now, nil
	} else if err != nil {
		return nil, err
	}
	if l.Boot != now.Boot {
		return now, nil
	}
	l.By = slices.DeleteFunc(l.By, func(dir string) bool {
		_, err := os.Stat(dir)
		return errors.Is(err, fs.ErrNotExist)
	})
	return &l, nil
}

func netns() uint64 {
	f, err := os.Open(netif.Self)
	if err != nil {
		return 0
	}
	defer f.Close()
	n, _ := netif.Inode(f)
	return n
}

// lent returns the interfaces on which the host forwards only because of Berth.
func (l *loan) lent() (all []string) {
	for _, s := range l.Was {
		if dev, name := filepath.Split(s.Key); name == "forwarding" || name == "force_forwarding" {
			if dev = filepath.Base(dev); dev != "all" && !slices.Contains(all, dev) {
				all = append(all, dev)
			}
		}
	}
	if i := slices.IndexFunc(l.Was, func(s setting) bool { return s.Key == "ipv6/conf/all/forwarding" }); i >= 0 {
		for _, s := range l.Was {
			if dev, name := filepath.Split(s.Key); name == "accept_ra" && !slices.Contains(all, filepath.Base(dev)) && filepath.Base(dev) != "default" {
				all = append(all, filepath.Base(dev))
			}
		}
	}
	slices.Sort(all)
	return all
}

// wantedForwarding returns the settings that must change so that packets of nodes are forwarded over the host's present
// interfaces with addresses. Each is changed for its interface alone where the kernel can do that: IPv4 always, IPv6 since
// Linux 6.17 (force_forwarding, perLink). An older kernel forwards IPv6 on all interfaces or on none. Interfaces that learned their
// addresses from routers would forget them then, unless accept_ra is 2.
func wantedForwarding(bridge string, v6, perLink bool) (all []setting, err error) {
	four, six, err := connected(bridge)
	if err != nil {
		return nil, err
	}
	want := func(key, from, to string) {
		if file.Text(sysctlFile(key)) == from {
			all = append(all, setting{key, from, to})
		}
	}
	for _, dev := range four {
		want("ipv4/conf/"+dev+"/forwarding", "0", "1")
	}
	if !v6 || file.Text(sysctlFile("ipv6/conf/all/forwarding")) == "1" {
		return all, nil
	}
	if perLink {
		for _, dev := range six {
			want("ipv6/conf/"+dev+"/force_forwarding", "0", "1")
		}
		return all, nil
	}
	devs, err := os.ReadDir(sysctlFile("ipv6/conf"))
	if err != nil {
		return nil, fmt.Errorf("list interfaces: %w", err)
	}
	for _, d := range devs {
		if name := d.Name(); name != "all" && name != "lo" && name != bridge && !strings.HasPrefix(name, netif.PortPrefix) &&
			file.Text(sysctlFile("ipv6/conf/"+name+"/forwarding")) == "0" {
			want("ipv6/conf/"+name+"/accept_ra", "1", "2")
		}
	}
	want("ipv6/conf/all/forwarding", "0", "1")
	return all, nil
}

// connected returns the host's interfaces with an IPv4 address, and those with an IPv6 address that is not link-local.
func connected(bridge string) (four, six []string, err error) {
	h, err := netif.Host()
	if err != nil {
		return nil, nil, err
	}
	defer h.Close()
	links, err := netif.List(h)
	if err != nil {
		return nil, nil, err
	}
	addrs, err := netif.Dump(func() ([]netlink.Addr, error) { return h.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, nil, fmt.Errorf("list addresses: %w", err)
	}
	for _, l := range links {
		a := l.Attrs()
		if a.Flags&net.FlagLoopback != 0 || a.Name == bridge {
			continue
		}
		has := func(v4 bool) bool {
			return slices.ContainsFunc(addrs, func(ad netlink.Addr) bool {
				return ad.LinkIndex == a.Index && (ad.IP.To4() != nil) == v4 && !ad.IP.IsLinkLocalUnicast()
			})
		}
		if has(true) {
			four = append(four, a.Name)
		}
		if has(false) {
			six = append(six, a.Name)
		}
	}
	return four, six, nil
}

// borrow lets the host forward for a root, and returns the interfaces on which it does so only for Berth. The record is
// written before the first setting. The caller holds the host-wide lock.
func (p Places) borrow(v6 bool) (lent []string, err error) {
	l, err := p.readLoan()
	if err != nil {
		return nil, err
	}
	if len(l.By) == 0 {
		l.giveBack() // a root was removed without its nodes
		l.Was = nil
	}
	_, noForce := os.Stat(sysctlFile("ipv6/conf/" + p.Bridge + "/force_forwarding"))
	more, err := wantedForwarding(p.Bridge, v6, noForce == nil)
	if err != nil {
		return nil, err
	}
	for _, s := range more { // a setting that another program set back meanwhile is in the record already
		if !slices.ContainsFunc(l.Was, func(o setting) bool { return o.Key == s.Key }) {
			l.Was = append(l.Was, s)
		}
	}
	if !slices.Contains(l.By, p.Run) {
		l.By = append(l.By, p.Run)
	}
	if err := file.WriteJSONForBoot(p.loanPath(), l); err != nil {
		return nil, err
	}
	for _, s := range more {
		if err := s.write(s.New); err != nil {
			return nil, err
		}
		fault.Point("forwarding set")
	}
	for _, key := range []string{"ipv4/conf/" + p.Bridge + "/forwarding", "ipv6/conf/" + p.Bridge + "/force_forwarding"} {
		if err := (setting{Key: key}).write("1"); err != nil && !errors.Is(err, fs.ErrNotExist) { // it goes with the bridge
			return nil, err
		}
	}
	return l.lent(), nil
}

// giveBack ends a root's part of the loan. The caller holds the host-wide lock.
func (p Places) giveBack() error {
	l, err := p.readLoan()
	if err != nil {
		return err
	}
	if _, err := os.Stat(p.loanPath()); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	l.By = slices.DeleteFunc(l.By, func(dir string) bool { return dir == p.Run })
	if len(l.By) > 0 {
		return file.WriteJSONForBoot(p.loanPath(), l)
	}
	l.giveBack()
	fault.Point("forwarding given back")
	for _, path := range []string{p.loanPath() + file.Unwritten, p.loanPath()} {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("forget what the host forwarded: %w", err)
		}
	}
	return nil
}

// giveBack sets the settings back that are still as Berth set them. Those of an interface that is gone are gone with it.
func (l *loan) giveBack() {
	for _, s := range slices.Backward(l.Was) {
		if file.Text(sysctlFile(s.Key)) == s.New {
			_ = s.write(s.Old) // it fails only if the interface goes at this moment
			fault.Point("forwarding back")
		}
	}
}

func (s setting) write(value string) error {
	if err := os.WriteFile(sysctlFile(s.Key), []byte(value), 0o644); err != nil {
		return fmt.Errorf("set net.%s: %w", strings.ReplaceAll(s.Key, "/", "."), err)
	}
	return nil
}
