// Package mac is the type of the addresses that network interfaces have on their links.
package mac

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"strings"
)

// Address is the address of an interface on its link: six bytes on Ethernet, other lengths elsewhere. Two addresses are the
// same if they are ==. The zero value is no address, and its text is empty; 00:00:00:00:00:00 is another value.
type Address struct{ bytes string }

// length is the length of an address on Ethernet.
const length = 6

// Zeros is the address 00:00:00:00:00:00, with which an adapter says that it has set none.
var Zeros = Of(make([]byte, length))

// Of returns an address of any length, as the kernel reports it.
func Of(hw net.HardwareAddr) Address { return Address{string(hw)} }

// Parse parses the text of an address on Ethernet.
func Parse(text string) (Address, error) {
	hw, err := net.ParseMAC(text)
	if err != nil || len(hw) != length {
		return Address{}, fmt.Errorf("%q is not a MAC, for example 02:00:5e:10:00:01", text)
	}
	return Of(hw), nil
}

// Must is Parse of a text that is an address.
func Must(text string) Address {
	a, err := Parse(text)
	if err != nil {
		panic(err)
	}
	return a
}

// Derive returns the locally administered unicast address that belongs to a text, always the same: the first six bytes of
// the text's SHA-256, with the group bit (0x01 of the first byte) cleared and the local bit (0x02) set.
func Derive(text string) Address {
	sum := sha256.Sum256([]byte(text))
	sum[0] = sum[0]&^1 | 2
	return Of(sum[:length])
}

// FromNumber returns the Ethernet address whose bytes are the lower six of n.
func FromNumber(n uint64) Address { return Of(binary.BigEndian.AppendUint64(nil, n)[8-length:]) }

// Number returns the bytes of an Ethernet address as a number, by which addresses are in order.
func (a Address) Number() uint64 {
	return binary.BigEndian.Uint64(append(make([]byte, 8-length), a.bytes[:length]...))
}

// HardwareAddr returns the address as package net has it; nil for the zero value.
func (a Address) HardwareAddr() net.HardwareAddr {
	if a.IsZero() {
		return nil
	}
	return net.HardwareAddr(a.bytes)
}

// IsZero reports whether a is no address.
func (a Address) IsZero() bool { return a.bytes == "" }

// IsEthernet reports whether a has the length of an address on Ethernet.
func (a Address) IsEthernet() bool { return len(a.bytes) == length }

// IsGroup reports whether a is an address of several interfaces: multicast or broadcast.
func (a Address) IsGroup() bool { return a.IsEthernet() && a.bytes[0]&1 != 0 }

// Check returns why an interface on Ethernet cannot have the address; nil if it can.
func (a Address) Check() error {
	switch {
	case !a.IsEthernet() || a == Zeros:
		return errors.New("is no address")
	case a.IsGroup():
		return errors.New("is a multicast address: the first byte must be even")
	}
	return nil
}

// String is "02:00:5e:10:00:01"; "" for the zero value.
func (a Address) String() string { return a.HardwareAddr().String() }

// MarshalText implements encoding.TextMarshaler.
func (a Address) MarshalText() ([]byte, error) { return []byte(a.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler. It takes addresses of all lengths.
func (a *Address) UnmarshalText(text []byte) error {
	if len(text) == 0 {
		*a = Address{}
		return nil
	}
	hw, err := net.ParseMAC(string(text))
	if err != nil {
		return fmt.Errorf("%q is not a MAC", text)
	}
	*a = Of(hw)
	return nil
}

// List writes addresses for a sentence: "02:00:5e:10:00:01, 02:00:5e:10:00:02".
func List(all []Address) string {
	words := make([]string, len(all))
	for i, a := range all {
		words[i] = a.String()
	}
	return strings.Join(words, ", ")
}
