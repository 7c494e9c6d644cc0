package certs

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"fmt"
	"math/big"
	"net/netip"
	"strings"

	"berth/internal/spec/roles"
)

func newKey() (*ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make key: %w", err)
	}
	return key, nil
}

// newSerial returns 127 random bits: RFC 5280 wants a positive number of at most 20 bytes that cannot be predicted.
func newSerial() (*big.Int, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, fmt.Errorf("make serial: %w", err)
	}
	return serial.SetBit(serial, 126, 1), nil
}

// isHostname reports whether a name can stand in a certificate as that of a host.
func isHostname(name string) bool {
	if len(name) == 0 || len(name) > 63 || roles.CheckName(name) != nil || strings.ContainsAny(name, "_@") {
		return false
	}
	for label := range strings.SplitSeq(name, ".") {
		if label == "" || strings.HasPrefix(label, "-") || strings.HasSuffix(label, "-") {
			return false
		}
	}
	_, err := netip.ParseAddr(name)
	return err != nil
}
