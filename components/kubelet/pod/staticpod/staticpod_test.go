package staticpod

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// recordingSink is a Sink that sends its calls to a channel.
type recordingSink chan string

func (s recordingSink) Set(p *v1.Pod)        { s <- "set " + p.Name }
func (s recordingSink) Remove(uid types.UID) { s <- "remove" }

// runSource runs a source of a directory until the test ends. first is closed after the first read.
// expect waits for the next calls of the sink.
func runSource(t *testing.T, dir string) (first <-chan struct{}, expect func(want ...string)) {
	t.Helper()
	sink, read := make(recordingSink, 100), make(chan struct{})
	s := &Source{Dir: dir, NodeName: "n", Sink: sink, Log: slog.New(slog.DiscardHandler)}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx, func() { close(read) }) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return read, func(want ...string) {
		t.Helper()
		for _, w := range want {
			select {
			case got := <-sink:
				if got != w {
					t.Fatalf("got %q, want %q", got, w)
				}
			case <-time.After(time.Minute):
				t.Fatalf("no call %q", w)
			}
		}
	}
}

// TestDirectoryRecreated checks that a removed directory has no pods, and that a recreated directory
// is watched.
func TestDirectoryRecreated(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "manifests")
	first, expect := runSource(t, dir)
	make_ := func(dir string) {
		t.Helper()
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		manifest := []byte("apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {containers: [{name: c, image: i}]}\n")
		if err := os.WriteFile(filepath.Join(dir, "web.yaml"), manifest, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	<-first
	make_(dir)
	expect("set web-n")
	for range 2 {
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
		expect("remove")
		make_(dir)
		expect("set web-n")
	}
	// Another directory is moved to the path.
	make_(dir + ".new")
	if err := os.Rename(dir, dir+".old"); err != nil {
		t.Fatal(err)
	}
	expect("remove")
	if err := os.Rename(dir+".new", dir); err != nil {
		t.Fatal(err)
	}
	expect("set web-n")
	if err := os.Remove(filepath.Join(dir, "web.yaml")); err != nil {
		t.Fatal(err)
	}
	expect("remove")
}

// TestMadeAgain checks that the pod of a manifest that is removed and immediately recreated is
// restarted, and that an overwritten manifest with the same content is not.
func TestMadeAgain(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "web.yaml")
	manifest := []byte("apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {containers: [{name: c, image: i}]}\n")
	write := func(path string) {
		t.Helper()
		if err := os.WriteFile(path, manifest, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(path)
	first, expect := runSource(t, dir)
	expect("set web-n")
	<-first
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	write(path)
	expect("remove", "set web-n")
	// The file is written under another name and renamed.
	write(filepath.Join(dir, ".web"))
	if err := os.Rename(filepath.Join(dir, ".web"), path); err != nil {
		t.Fatal(err)
	}
	write(filepath.Join(dir, "zz.yaml")) // another manifest with the same pod name, which is ignored
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	expect("remove", "set web-n")
}

// TestUnreadable checks that a pod continues to run when its manifest becomes unreadable, that this
// is logged, and that the pod is removed with the file.
func TestUnreadable(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "web.yaml")
	sink := make(recordingSink, 100)
	s := &Source{Dir: dir, NodeName: "n", Sink: sink, Log: slog.New(slog.DiscardHandler), known: map[string]types.UID{}, removed: map[string]bool{}}
	const good = "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {containers: [{name: c, image: i}]}\n"
	for name, text := range map[string]string{"no manifest": "{", "too long": good + strings.Repeat("#", maxDocumentSize)} {
		for _, text := range []string{good, text} {
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			s.read()
		}
		if len(sink) != 1 || <-sink != "set web-n" {
			t.Fatalf("%s: the pod was removed", name)
		}
		if problems := Problems(dir); len(problems) != 1 {
			t.Errorf("%s: %v", name, problems)
		}
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		if s.read(); len(sink) != 1 || <-sink != "remove" {
			t.Fatalf("%s: the pod remains after its manifest was deleted", name)
		}
	}
}

// TestDuplicateName checks that the second of two manifests with the same pod name is reported as
// ignored, once.
func TestDuplicateName(t *testing.T) {
	dir := t.TempDir()
	for _, file := range []string{"a.yaml", "b.yaml"} {
		manifest := "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {containers: [{name: c, image: " + file[:1] + "}]}\n"
		if err := os.WriteFile(filepath.Join(dir, file), []byte(manifest), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var ignored []string
	sink := make(recordingSink, 100)
	s := &Source{Dir: dir, NodeName: "n", Sink: sink, Log: slog.New(slog.DiscardHandler), known: map[string]types.UID{}, removed: map[string]bool{}}
	s.Ignored = func(p *v1.Pod) { ignored = append(ignored, p.Spec.Containers[0].Image) }
	s.read()
	s.read()
	if len(sink) != 1 || len(ignored) != 1 || ignored[0] != "b" {
		t.Errorf("%d calls, ignored %v", len(sink), ignored)
	}
}

// TestProblems checks that invalid manifests are reported with their file and position, and that
// valid ones are not reported.
func TestProblems(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "directory"), 0o755); err != nil {
		t.Fatal(err)
	}
	const good = "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {containers: [{name: c, image: i}]}\n"
	for name, text := range map[string]string{
		"a.yaml": good, "b.yaml": good, ".hidden": "{", "c.yaml": "apiVersion: v1\nkind: Pod\n metadata: {name: web}\n", "d.yaml": "apiVersion: v1\nkind: Pod\nmetadata: {name: d}\nspec: {containers: x}\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want := []string{
		dir + "/b.yaml is not run: its pod has the same name as that of " + dir + "/a.yaml",
		dir + "/c.yaml is not run: decoding manifest: yaml: line 3: ",
		dir + "/d.yaml is not run: decoding manifest: json: cannot unmarshal string into Go struct field PodSpec.spec.containers",
	}
	found := Problems(dir)
	for i := range max(len(want), len(found)) {
		if i >= len(want) || i >= len(found) || !strings.HasPrefix(found[i].Error(), "manifest "+want[i]) {
			t.Fatalf("found %v", found)
		}
	}
	if found := Problems(filepath.Join(dir, "none")); len(found) > 0 {
		t.Errorf("without a directory: %v", found)
	}
}
