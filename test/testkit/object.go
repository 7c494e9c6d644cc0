package testkit

import (
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Object checks that an object of BPF programs in this folder, NAME.o, is what NAME.bpf.c says: by the sums in NAME.sum, and by the
// compiler if it is there, as NAME.go has go generate call it.
func Object(t *testing.T, name string) {
	t.Helper()
	read := func(file string) []byte {
		t.Helper()
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	var got strings.Builder
	for _, file := range []string{name + ".bpf.c", name + ".o"} {
		fmt.Fprintf(&got, "%x  %s\n", sha256.Sum256(read(file)), file)
	}
	if sums := string(read(name + ".sum")); got.String() != sums {
		t.Errorf("run go generate: the sums are\n%s, not\n%s", got.String(), sums)
	}
	clang, err := exec.LookPath("clang-14")
	if err != nil {
		t.Skip("the sums are right; compiling the source again needs clang-14, llvm-14 and libbpf-dev")
	}
	_, line, _ := strings.Cut(string(read(name+".go")), "//go:generate clang-14 ")
	line, _, _ = strings.Cut(line, " -o "+name+".o")
	out := filepath.Join(t.TempDir(), name+".o")
	for _, cmd := range []*exec.Cmd{exec.Command(clang, append(strings.Fields(line), "-o", out)...), exec.Command("llvm-strip-14", "-g", out)} {
		if said, err := cmd.CombinedOutput(); err != nil {
			t.Skipf("the sums are right; compiling the source again fails: %v: %v: %s", cmd.Args, err, said)
		}
	}
	if string(read(out)) != string(read(name+".o")) {
		t.Error("clang-14 makes another object of the source: run go generate")
	}
}
