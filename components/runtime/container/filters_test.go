//go:build cgo && seccomp

package container

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/moby/profiles/seccomp"
	"github.com/opencontainers/runtime-spec/specs-go"
)

// confined returns a specification with the default seccomp profile for some capabilities.
func confined(t *testing.T, capabilities ...string) *specs.Spec {
	t.Helper()
	spec := &specs.Spec{Process: &specs.Process{Capabilities: &specs.LinuxCapabilities{Bounding: capabilities}}, Linux: &specs.Linux{}}
	var err error
	if spec.Linux.Seccomp, err = seccomp.GetDefaultProfile(spec); err != nil {
		t.Fatal(err)
	}
	return spec
}

func (c *filterCache) mustGet(t *testing.T, spec *specs.Spec) *compiledFilter {
	t.Helper()
	f, err := c.get(spec)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func TestFilterCache(t *testing.T) {
	var cache filterCache
	defer cache.close()
	plain := cache.mustGet(t, confined(t))
	if plain == nil || plain != cache.mustGet(t, confined(t)) {
		t.Error("equal profiles do not have the same filter")
	}
	if plain == cache.mustGet(t, confined(t, "CAP_SYS_ADMIN")) {
		t.Error("different profiles have the same filter")
	}
	changed := confined(t)
	changed.Linux.Seccomp.Syscalls[0].Names = changed.Linux.Seccomp.Syscalls[0].Names[1:]
	if cache.mustGet(t, changed) != nil || cache.mustGet(t, &specs.Spec{Linux: &specs.Linux{}}) != nil {
		t.Error("a profile that is not the default profile has a filter")
	}
	// The oldest filter is removed when the cache is full.
	for i := len(cache.entries); i < maxFilters; i++ {
		cache.entries = append(cache.entries, &compiledFilter{profile: [32]byte{byte(i)}})
	}
	last := cache.mustGet(t, confined(t, "CAP_SYS_TIME"))
	if len(cache.entries) != maxFilters || cache.entries[maxFilters-1] != last || slices.Contains(cache.entries, plain) {
		t.Errorf("the cache has %d filters", len(cache.entries))
	}
}

// TestFilterFile checks that files are shared as long as one exists.
func TestFilterFile(t *testing.T) {
	dir := t.TempDir()
	f := &compiledFilter{program: []byte("the program")}
	defer f.close()
	infos := map[string]os.FileInfo{}
	store := func(name string) {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := f.store(path); err != nil {
			t.Fatal(err)
		}
		data, err := os.ReadFile(path)
		if err != nil || string(data) != "the program" {
			t.Errorf("%s contains %q, %v", name, data, err)
		}
		if infos[name], err = os.Stat(path); err != nil {
			t.Fatal(err)
		}
	}
	remove := func(names ...string) {
		t.Helper()
		for _, name := range names {
			if err := os.Remove(filepath.Join(dir, name)); err != nil {
				t.Fatal(err)
			}
		}
	}
	store("a")
	store("b")
	remove("a")
	store("c")
	if !os.SameFile(infos["a"], infos["b"]) || !os.SameFile(infos["b"], infos["c"]) {
		t.Error("the file is not shared")
	}
	remove("b", "c")
	store("d")
	store("e")
	if !os.SameFile(infos["d"], infos["e"]) {
		t.Error("the new file is not shared")
	}
	if err := f.store(filepath.Join(dir, "none", "f")); err == nil {
		t.Error("no error in a directory that does not exist")
	}
}

// TestProcessFiles checks that the process settings of a container with a filter cannot be read without its filter.
func TestProcessFiles(t *testing.T) {
	r := &Runner{State: t.TempDir()}
	for id, filter := range map[string]*compiledFilter{"filtered": {program: []byte("the program")}, "unconfined": nil} {
		if err := os.Mkdir(filepath.Join(r.State, id), 0o700); err != nil {
			t.Fatal(err)
		}
		file, err := r.storeProcess(id, &specs.Process{Cwd: "/" + id}, filter)
		if err != nil {
			t.Fatal(err)
		}
		if (file != nil) != (filter != nil) {
			t.Errorf("%s: stored the file %v", id, file)
		}
		file.Close()
		if filter != nil {
			filter.close()
		}
		p, file, err := r.loadProcess(id)
		if err != nil || p.Cwd != "/"+id || (file != nil) != (filter != nil) {
			t.Errorf("%s: got %v, %v, %v", id, p, file, err)
		}
		file.Close()
	}
	if err := os.Remove(filepath.Join(r.State, "filtered", filterFile)); err != nil {
		t.Fatal(err)
	}
	if _, _, err := r.loadProcess("filtered"); err == nil || !strings.Contains(err.Error(), filterFile) {
		t.Errorf("without the filter: got %v", err)
	}
	if _, _, err := r.loadProcess("none"); err == nil {
		t.Error("no error for an unknown container")
	}
}

func TestCheckFilter(t *testing.T) {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	filtered := strings.Contains(string(status), "Seccomp:\t2")
	if err := checkFilter(os.Getpid()); (err == nil) != filtered {
		t.Errorf("this process has a filter: %t; got %v", filtered, err)
	}
	if err := checkFilter(1 << 30); err == nil {
		t.Error("no error for a process that does not exist")
	}
}
