package slurmconf

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// write makes files in a folder.
func write(t *testing.T, files map[string]string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// TestThere reads a site's own files as slurmctld does: included files, continued lines, comments, keys in any case.
func TestThere(t *testing.T) {
	dir := write(t, map[string]string{
		"slurm.conf": "# ours\r\nClusterName=lab # of physics\nINCLUDE %c.conf\nslurmctldparameters=enable_configless, \\\n rl_enable\nMailProg=/a\\#b\n" +
			"NodeName=DEFAULT Sockets=2\nPartitionName=batch Nodes=ALL\nPartitionName=\"long\" Nodes=ALL\ninclude berth.conf\nTreeWidth=16\n",
		"lab.conf":   "PrologSlurmctld=/site/prolog\ntreewidth = 50\n",
		"berth.conf": "TreeWidth=65533\nPartitionName=mine Nodes=x\n",
		"gres.conf":  "AutoDetect=off\n",
	})
	there, err := ReadThere(dir)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"clustername": "lab", "prologslurmctld": "/site/prolog", "treewidth": "16", "slurmctldparameters": "enable_configless, rl_enable", "mailprog": `/a\#b`,
	}
	if diff := cmp.Diff(want, there.keys); diff != "" || !there.Found || !there.Includes || !there.gres {
		t.Errorf("%s\n%+v", diff, there)
	}
	if diff := cmp.Diff([]string{"batch", "long"}, there.parts); diff != "" {
		t.Error(diff)
	}
	if there, err = ReadThere(t.TempDir()); err != nil || there.Found || len(there.advice(true)) > 0 {
		t.Errorf("no files: %+v %v", there, err)
	}
	for name, files := range map[string]map[string]string{
		"includes a file that is not there": {"slurm.conf": "include gone.conf\n"},
		"includes itself":                   {"slurm.conf": "include slurm.conf\n"},
	} {
		if _, err := ReadThere(write(t, files)); err == nil || !strings.Contains(err.Error(), "slurm.conf includes") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestSettle: lists are joined, keys to leave are left, and what cannot be both is a conflict.
func TestSettle(t *testing.T) {
	s := parse(t, "warm: 1\nleave: [treewidth]\nhosts: [{hosts: [a], slots: 2, cpus: 1, memory: 1GiB, scratch: 1GiB}]\npartitions: [{name: batch}, {name: own}]")
	made := func(conf string) (lines, conflicts string) {
		t.Helper()
		there, err := ReadThere(write(t, map[string]string{"slurm.conf": conf}))
		if err != nil {
			t.Fatal(err)
		}
		c, err := Make(s, facts("a"), Oldest, there)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(c.Files[0].Text) {
			key, _, _ := strings.Cut(line, "=")
			if lists[strings.ToLower(key)] || key == "PrologSlurmctld" || key == "TreeWidth" {
				lines += line
			}
		}
		for _, c := range c.Conflicts {
			conflicts += fmt.Sprintf("%s=%s, want %q\n", c.Key, c.There, c.Want)
		}
		return lines, conflicts
	}
	prolog := "PrologSlurmctld=" + s.Programs + "/slurm-prolog\n"
	for _, c := range []struct{ conf, lines, conflicts string }{
		{
			"GresTypes=gpu\nPrivateData=jobs,CLOUD\nSlurmctldParameters=enable_configless\nSuspendExcNodes=n[1-4]\nTreeWidth=50\ninclude berth.conf\n",
			prolog + "PrivateData=jobs,CLOUD\nGresTypes=gpu,scratch\nSuspendExcNodes=n[1-4],a-[01-02]:1\n", "",
		},
		{
			"include berth.conf\nGresTypes=gpu\nPrologSlurmctld=/site\nPartitionName=own Nodes=ALL\n",
			prolog + "PrivateData=cloud\nGresTypes=gpu,scratch\nSuspendExcNodes=a-[01-02]:1\n",
			"PrologSlurmctld=/site, want \"" + s.Programs + "/slurm-prolog\"\nGresTypes=gpu, want \"gpu,scratch\"\nPartitionName=own, want \"own\"\n",
		},
		{
			"SlurmctldParameters=cloud_dns\n",
			prolog + "PrivateData=cloud\nGresTypes=scratch\nSuspendExcNodes=a-[01-02]:1\n",
			"SlurmctldParameters=cloud_dns, want \"\"\n",
		},
	} {
		lines, conflicts := made(c.conf)
		if diff := cmp.Diff(c.lines, lines) + cmp.Diff(c.conflicts, conflicts); diff != "" {
			t.Errorf("%s: %s", c.conf, diff)
		}
	}
}

// TestAdvice: what nodes would stumble over in the site's own files is said.
func TestAdvice(t *testing.T) {
	there, err := ReadThere(write(t, map[string]string{"slurm.conf": "ProctrackType=proctrack/cgroup\nTaskPlugin=task/affinity\nAccountingStorageType=accounting_storage/slurmdbd\nAccountingStoreFlags=job_script\n", "gres.conf": "Name=gpu\n"}))
	if err != nil {
		t.Fatal(err)
	}
	var said string
	for _, n := range there.advice(true) {
		said += n.Text + "\n"
	}
	for _, want := range []string{"gres.conf does not include berth-gres.conf", "make \"include berth.conf\" its last line", "no SlurmdParameters=config_overrides", "proctracktype=proctrack/cgroup: in nodes", "no AccountingStoreFlags=job_comment"} {
		if !strings.Contains(said, want) {
			t.Errorf("no %q in %s", want, said)
		}
	}
	if strings.Contains(said, "task/affinity") {
		t.Error(said)
	}
}
