package gate

import (
	"errors"
	"net/netip"

	"github.com/cilium/ebpf"
)

// kernelMap has the methods of a BPF map that a table needs.
type kernelMap interface {
	Put(key, value any) error
	Delete(key any) error
}

// table maps addresses to nodes, as the kernel was told. A node has a number, and a node whose group is made anew another one.
type table struct {
	last      uint32 // number that was given
	numbers   map[string]uint32
	names     map[uint32]string
	addresses map[netip.Addr]uint32
}

func newTable() table {
	return table{numbers: map[string]uint32{}, names: map[uint32]string{}, addresses: map[netip.Addr]uint32{}}
}

// tell brings the maps in line with all.
func (t *table) tell(all map[netip.Addr]string, addresses, nodes kernelMap) error {
	stay := map[string]bool{}
	for _, node := range all {
		stay[node] = true
	}
	for node := range t.numbers {
		if stay[node] {
			continue
		}
		if err := t.forget(node, addresses, nodes); err != nil {
			return err
		}
	}
	for a := range t.addresses {
		if _, ok := all[a]; ok {
			continue
		}
		if err := t.remove(a, addresses); err != nil {
			return err
		}
	}
	for a, node := range all {
		number := t.numbers[node]
		if number == 0 {
			number = t.last + 1
			if err := nodes.Put(number, uint32(1)); err != nil {
				return err
			}
			t.last, t.numbers[node], t.names[number] = number, number, node
		}
		if t.addresses[a] == number {
			continue
		}
		if err := addresses.Put(key(a), number); err != nil {
			return err
		}
		t.addresses[a] = number
	}
	return nil
}

// forget removes a node: first its addresses, so that nothing is stopped for it.
func (t *table) forget(node string, addresses, nodes kernelMap) error {
	number := t.numbers[node]
	if number == 0 {
		return nil
	}
	for a, of := range t.addresses {
		if of != number {
			continue
		}
		if err := t.remove(a, addresses); err != nil {
			return err
		}
	}
	if err := nodes.Delete(number); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return err
	}
	delete(t.numbers, node)
	delete(t.names, number)
	return nil
}

func (t *table) remove(a netip.Addr, addresses kernelMap) error {
	if err := addresses.Delete(key(a)); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return err
	}
	delete(t.addresses, a)
	return nil
}

// key is how the kernel has an address: 16 bytes, for IPv4 as ::ffff:a.b.c.d.
func key(a netip.Addr) [16]byte { return a.Unmap().WithZone("").As16() }
