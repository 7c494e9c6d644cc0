package nat

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"strings"

	"berth/internal/sys/fork"
	"berth/internal/sys/jsonfile"
	"berth/internal/sys/refuse"
)

// family is the family of the table: inet has IPv4 and IPv6.
const family = "inet"

const nftRemedy = "install nftables (Debian, Ubuntu: apt-get install nftables), or use mode bridge or macvlan"

// findNFT finds the program nft.
func findNFT() (string, error) {
	path, err := exec.LookPath("nft")
	if err != nil { // a unit of systemd or a login of sudo may have no sbin in its PATH
		path, err = exec.LookPath("/usr/sbin/nft")
	}
	if err != nil {
		return "", refuse.Cannotf(nftRemedy, "mode nat: this host has no nft, which sets the rules")
	}
	return path, nil
}

// apply hands a script to nft. The kernel takes all of it or nothing.
func apply(ctx context.Context, script string) error {
	_, err := nft(ctx, script, "-f", "-")
	return err
}

// nftError is what nft said when it failed.
type nftError struct{ said string }

func (e *nftError) Error() string { return "nft: " + e.said }

// absent reports whether nft did not find what it was asked for.
func absent(err error) bool {
	said, ok := errors.AsType[*nftError](err)
	return ok && strings.Contains(said.said, "No such file or directory")
}

func nft(ctx context.Context, in string, args ...string) ([]byte, error) {
	path, err := findNFT()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env = []string{"LC_ALL=C"}
	cmd.Stdin = strings.NewReader(in)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := fork.Output(cmd)
	if err == nil {
		return out, nil
	}
	said := strings.TrimSpace(errs.String())
	if said == "" {
		said = err.Error()
	}
	if strings.Contains(said, "Operation not supported") || strings.Contains(said, "Protocol not supported") {
		return nil, refuse.Cannotf("use a kernel with CONFIG_NF_TABLES_INET, CONFIG_NFT_NAT, CONFIG_NFT_MASQ, CONFIG_NFT_FIB_INET and CONFIG_NFT_CT (Debian, Ubuntu: linux-image)",
			"mode nat: this kernel cannot hold the rules: %s", said)
	}
	return nil, &nftError{said: said}
}

// object is one object of nft's JSON output.
type object struct {
	Table *struct{ Family, Name string }
	Chain *chain
	Rule  *struct {
		Family, Table, Chain string
		Expr                 []json.RawMessage
	}
	Map *struct {
		Family, Table, Name string
		Elem                []json.RawMessage
	}
}

// keyOf returns the key of an element of a map, as it is written in a script: "tcp . 8080"; "" for one that Berth does not write.
func keyOf(element json.RawMessage) string {
	var pair [2]struct{ Concat []any }
	if json.Unmarshal(element, &pair) != nil {
		return ""
	}
	var parts []string
	for _, part := range pair[0].Concat {
		parts = append(parts, fmt.Sprint(part))
	}
	return strings.Join(parts, " . ")
}

// chain is a chain of nftables. A base chain has a hook.
type chain struct {
	Family, Table, Name string
	Type, Hook, Policy  string
	Prio                json.Number
}

// list reads objects from nft.
func list(ctx context.Context, args ...string) ([]object, error) {
	out, err := nft(ctx, "", append([]string{"-j"}, args...)...)
	if err != nil {
		return nil, err
	}
	var doc struct{ NFTables []object }
	if err := json.Unmarshal(out, &doc); err != nil {
		return nil, fmt.Errorf("read the answer of nft: %s", jsonfile.Wrong(out, err))
	}
	return doc.NFTables, nil
}
