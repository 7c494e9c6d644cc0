package sitecli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/rogpeppe/go-internal/diff"
	"github.com/spf13/cobra"

	"berth/internal/site/slurm/settings"
	"berth/internal/site/slurm/slurmconf"
	"berth/internal/sys/file"
	"berth/internal/sys/lock"
	"berth/internal/sys/refuse"
)

// slurmConfig is berth slurm config.
type slurmConfig struct {
	*app
	file, dir, output, version   string
	check, diff, offline, schema bool
}

// slurmFile is a file to write, beside the one that is there.
type slurmFile struct {
	slurmconf.File
	Path  string `json:"path"`
	State string `json:"state"` // new | same | differs | kept: the site's own
	Diff  string `json:"diff,omitempty"`
}

func (a *app) slurmConfigCmd() *cobra.Command {
	o := &slurmConfig{app: a}
	c := &cobra.Command{
		Use: "config", Short: "make the files from which Slurm knows the nodes", Args: cobra.NoArgs,
		Long: `Make Slurm's files for the hosts that /etc/berth/slurm.yaml names: a node of
State=CLOUD for each slot, partitions that give whole nodes to jobs, the programs
that make and remove nodes, and their times. What the settings leave out is asked
of the hosts' agents, and of the template there.

berth.conf and berth-gres.conf are Berth's own, written anew each time.
slurm.conf and gres.conf are the site's: they include the others, and are made
only where there are none. Without a flag the files are printed. What is missing, and what
the site's slurm.conf sets otherwise, is said on standard error.

Exit codes: 2 wrong settings; 3 the version of Slurm is not known or too old,
nobody says how many nodes a host takes, a conflict with the site's slurm.conf or
an agent that does not answer keeps --output from writing; 4 no settings; 6 with
--check: the files differ from those that are there, or there is a conflict.`,
		Example:           "  berth slurm config --diff\n  berth slurm config --output /etc/slurm && scontrol reconfigure\n  berth slurm config --slurm-version 26.05 --offline --settings ./slurm.yaml",
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context()) },
	}
	f := c.Flags()
	f.StringVar(&o.file, "settings", "", "read this `FILE` instead of /etc/berth/slurm.yaml")
	f.StringVar(&o.dir, "dir", "", "compare with Slurm's files in `DIR` (default: that of --output, else /etc/slurm)")
	f.StringVar(&o.output, "output", "", "write the files into `DIR`")
	f.StringVar(&o.version, "slurm-version", "", "make files for this `VERSION`, as 22.05 (default: that of slurmctld or sinfo here)")
	f.BoolVar(&o.check, "check", false, "print only which files differ; exit code 6 if one does")
	f.BoolVar(&o.diff, "diff", false, "print what would change, as a unified diff")
	f.BoolVar(&o.schema, "schema", false, "print the JSON Schema of the settings, and nothing else")
	f.BoolVar(&o.offline, "offline", false, "ask no agent: the settings alone")
	c.MarkFlagsMutuallyExclusive("check", "diff", "output", "schema")
	return a.jsonFlag(c)
}

func (o *slurmConfig) run(ctx context.Context) error {
	if o.schema {
		schema, err := settings.Schema()
		fmt.Fprintln(o.Out, string(schema))
		return err
	}
	s, err := o.slurmSettings(o.file)
	if err != nil {
		return err
	}
	v, err := slurmVersion(ctx, o.version)
	if err != nil {
		return err
	}
	dir := cmp.Or(o.dir, o.output, "/etc/slurm")
	there, err := slurmconf.ReadThere(dir)
	if err != nil {
		return err
	}
	facts := map[string]slurmconf.Facts{}
	if !o.offline {
		facts = o.slurmFacts(ctx, s)
	} else {
		for _, g := range s.Hosts {
			for _, h := range g.Hosts {
				facts[h] = slurmconf.Facts{Missing: "it was not asked (--offline)"}
			}
		}
	}
	made, err := slurmconf.Make(s, facts, v, there)
	if err != nil {
		return err
	}
	if !o.offline {
		for _, m := range unheard(facts) {
			made.Notes = append(made.Notes, slurmconf.Note{Text: m.hosts + " told nothing: " + m.why})
		}
	}
	files, err := compare(dir, made.Files)
	if err != nil {
		return err
	}
	if o.output != "" {
		if err := o.refused(made, facts); err != nil {
			return err
		}
		if err := o.write(ctx, made); err != nil {
			return err
		}
	}
	return o.print(made, files)
}

// compare says how each file differs from that of the folder.
func compare(dir string, files []slurmconf.File) (all []slurmFile, err error) {
	for _, f := range files {
		one := slurmFile{File: f, Path: filepath.Join(dir, f.Name), State: "new"}
		had, err := os.ReadFile(one.Path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return nil, fmt.Errorf("read what is there: %w", err)
		case f.Begin:
			one.State = "kept"
		case string(had) == f.Text:
			one.State = "same"
		default:
			one.State = "differs"
		}
		if one.State == "new" || one.State == "differs" {
			one.Diff = string(diff.Diff(one.Path, had, one.Path+" (berth slurm config)", []byte(f.Text)))
		}
		all = append(all, one)
	}
	return all, nil
}

// refused says why files are not written.
func (o *slurmConfig) refused(made *slurmconf.Config, facts map[string]slurmconf.Facts) error {
	var wrong []error
	for _, c := range made.Conflicts {
		wrong = append(wrong, refuse.Cannotf(c.Text, "slurm.conf says %s=%s, and Berth's file %s", c.Key, c.There, cmp.Or(c.Want, "needs that it is not there")))
	}
	if !o.offline {
		for _, m := range unheard(facts) {
			wrong = append(wrong, refuse.Cannotf("with --offline nobody is asked, and what the settings leave out is taken as it is printed",
				"%s told nothing, and files without what they tell would change once they do: %s", m.hosts, m.why))
		}
	}
	return refuse.Join(wrong)
}

// silence is why the agents of hosts told nothing.
type silence struct{ hosts, why string }

// unheard lists the hosts whose agents told nothing, those with the same reason together.
func unheard(facts map[string]slurmconf.Facts) (all []silence) {
	of := map[string][]string{}
	for _, h := range slices.Sorted(maps.Keys(facts)) {
		if why := facts[h].Missing; why != "" {
			of[why] = append(of[why], h)
		}
	}
	for _, why := range slices.Sorted(maps.Keys(of)) {
		all = append(all, silence{"the agents of " + strings.Join(of[why], ", "), why})
		if len(of[why]) == 1 {
			all[len(all)-1].hosts = "the agent of " + of[why][0]
		}
	}
	return all
}

// write replaces the files that differ.
func (o *slurmConfig) write(ctx context.Context, made *slurmconf.Config) error {
	if err := os.MkdirAll(o.output, 0o755); err != nil {
		return fmt.Errorf("make Slurm's folder: %w", err)
	}
	held, err := lock.OpenDir(ctx, o.output)
	if err != nil {
		return err
	}
	defer lock.Release(held)
	files, err := compare(o.output, made.Files)
	if err != nil {
		return err
	}
	for _, f := range files {
		if f.State == "same" || f.State == "kept" {
			continue
		}
		if err := file.Output(f.Path, 0o644, func(to *os.File) error { _, err := to.WriteString(f.Text); return err }); err != nil {
			return err
		}
	}
	return nil
}

// print prints the files that were asked for, and the notes for their reader.
func (o *slurmConfig) print(made *slurmconf.Config, files []slurmFile) error {
	differ := len(made.Conflicts) > 0
	for _, f := range files {
		differ = differ || f.State == "new" || f.State == "differs"
	}
	if o.check && differ {
		o.code = int(refuse.Differs)
	}
	if o.json {
		return o.printJSON(struct {
			*slurmconf.Config
			Files []slurmFile `json:"files"`
		}{made, files})
	}
	for _, n := range made.Notes {
		o.note(n.Host, n.Text)
	}
	for _, c := range made.Conflicts {
		o.note("", fmt.Sprintf("conflict: slurm.conf says %s=%s: %s", c.Key, c.There, c.Text))
	}
	for _, f := range files {
		switch {
		case o.diff:
			fmt.Fprint(o.Out, f.Diff)
		case o.output != "":
			fmt.Fprintf(o.Out, "%s: %s\n", filepath.Join(o.output, f.Name), map[string]string{"new": "made", "differs": "written", "same": "is as it should be", "kept": "is the site's own"}[f.State])
		case o.check:
			fmt.Fprintf(o.Out, "%s: %s\n", f.Path, f.State)
		case f.State != "kept":
			fmt.Fprintf(o.Out, "# %s\n%s\n", f.Path, strings.TrimSuffix(f.Text, "\n"))
		}
	}
	return nil
}

func (o *slurmConfig) note(host, what string) {
	if host != "" {
		what = "host " + host + ": " + what
	}
	fmt.Fprintln(o.Err, "berth: "+what)
}
