package site

import (
	"slices"
	"testing"

	"github.com/spf13/cobra"
)

// TestFilesTravel: all files of -f go along with a command line for another host, but standard input.
func TestFilesTravel(t *testing.T) {
	root := &cobra.Command{Use: "berth"}
	apply := &cobra.Command{Use: "apply", Run: func(*cobra.Command, []string) {}}
	apply.Flags().StringArrayP("file", "f", nil, "")
	root.AddCommand(apply)
	got, err := travels(root, "h2", []string{"apply", "-f", "a.yaml", "-f", "-", "--file=b.yaml"})
	if err != nil || !slices.Equal(got, []string{"a.yaml", "b.yaml"}) {
		t.Errorf("%q, %v", got, err)
	}
}
