package numa

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
)

func TestSet(t *testing.T) {
	s := Of(0, 2, 5)
	if s.Count() != 3 || !s.Has(2) || s.Has(1) || s.Has(-1) || s.String() != "0,2,5" {
		t.Errorf("%v", s.IDs())
	}
	if s := Of(-1, MaxNodes-1, MaxNodes); s.Count() != 1 || !s.Has(MaxNodes-1) {
		t.Errorf("last node and two invalid ones: %v", s.IDs())
	}
	var got []Set
	for x := range Of(0, 1, 3).Subsets() {
		got = append(got, x)
	}
	if !slices.Equal(got, []Set{1, 2, 8, 3, 9, 10, 11}) {
		t.Errorf("%v", got)
	}
	if !Of(3).Narrower(Of(0, 1)) || !Of(0).Narrower(Of(1)) || Of(0, 1).Narrower(Of(0)) {
		t.Error("narrower")
	}
}

func TestRead(t *testing.T) {
	root := t.TempDir()
	for name, text := range map[string]string{
		"online":         "0-1\n",
		"node0/cpulist":  "0-3\n",
		"node0/meminfo":  "Node 0 MemTotal:       1024 kB\nNode 0 MemFree: 12 kB\n",
		"node0/distance": "10 21\n",
		"node0/hugepages/hugepages-2048kB/nr_hugepages": "4\n",
		"node1/cpulist":  "4-7\n",
		"node1/meminfo":  "Node 1 MemTotal:       2048 kB\n",
		"node1/distance": "21 10\n",
		"node1/hugepages/hugepages-1048576kB/nr_hugepages": "1\n",
	} {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	m, err := Read(root)
	if err != nil {
		t.Fatal(err)
	}
	if len(m) != 2 || m.All() != 3 || m.OfCPU(5) != 1 || m[1].Memory[v1.ResourceMemory] != 2<<20 || m[0].Memory["hugepages-2Mi"] != 8<<20 ||
		m[1].Memory["hugepages-1Gi"] != 1<<30 || m.Distance(3) != 15.5 || m.Distance(2) != 10 {
		t.Errorf("%+v", m)
	}
	if err := os.WriteFile(filepath.Join(root, "node1/meminfo"), []byte("nothing"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(root); err == nil {
		t.Error("a node without memory was accepted")
	}
}
