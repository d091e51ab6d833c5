package oomwatch

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const (
	ofMachine       = "4,812,3,-;oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom,task_memcg=/user.slice,task=a,b,pid=7,uid=0\n SUBSYSTEM=x\n"
	ofGroup         = "6,813,3,-;oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/kubepods/x,mems_allowed=0,oom_memcg=/kubepods/x,task_memcg=/kubepods/x,task=tail,pid=8,uid=0\n"
	ofUnknownCgroup = "6,814,3,-;oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=/,task_memcg=/,task=tail,pid=9,uid=0\n"
)

func TestParse(t *testing.T) {
	for record, want := range map[string]string{
		ofMachine:       "System OOM encountered, victim process: a,b, pid: 7",
		ofUnknownCgroup: "System OOM encountered, victim process: tail, pid: 9",
		ofGroup:         "", "6,1,2,-;eth0: link up\n": "", "": "",
		"6,1,2,-;oom-kill:constraint=CONSTRAINT_NONE,global_oom,task_memcg=/,task=x": "",
	} {
		got := ""
		if v, ok := parse(record); ok {
			got = v.Message()
		}
		if got != want {
			t.Errorf("%q: %q, want %q", record, got, want)
		}
	}
}

// TestWatch checks that reading starts at the end of the log.
func TestWatch(t *testing.T) {
	file := filepath.Join(t.TempDir(), "kmsg")
	if err := Watch(t.Context(), file, nil); err == nil {
		t.Error("a log that is not there is no error")
	}
	// A regular file can be seeked, and reading it there returns EOF.
	if err := os.WriteFile(file, []byte(ofMachine), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Watch(t.Context(), file, func(v Victim) { t.Errorf("%+v is of the past", v) }); err == nil || !strings.Contains(err.Error(), "EOF") {
		t.Errorf("the end of a log: %v", err)
	}
	// The cancellation of ctx is no error.
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := Watch(ctx, file, nil); err != nil {
		t.Errorf("after the end: %v", err)
	}
}

// FuzzParse: process names are arbitrary.
func FuzzParse(f *testing.F) {
	for _, s := range []string{ofMachine, ofGroup, ofUnknownCgroup} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, record string) {
		if v, ok := parse(record); ok && (v.PID < 0 || !strings.HasPrefix(v.Message(), "System OOM")) {
			t.Errorf("%q: %+v", record, v)
		}
	})
}
