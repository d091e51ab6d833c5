package cgroup

import (
	"path/filepath"
	"reflect"
	"testing"
	"time"
)

func TestPressures(t *testing.T) {
	m, root := fakeV2(t)
	put(t, filepath.Join(root, "pods"), "memory.pressure", "some avg10=1.50 avg60=0.25 avg300=0.10 total=2500000\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=1\n")
	// Kernels before 5.13 do not report "full" for the CPU.
	put(t, filepath.Join(root, "pods"), "cpu.pressure", "some avg10=0.00 avg60=0.00 avg300=0.00 total=7\n")
	want := Pressures{
		Memory: &Pressure{Some: Stall{Total: 2500 * time.Millisecond, Avg10: 1.5, Avg60: 0.25, Avg300: 0.1}, Full: Stall{Total: time.Microsecond}},
		CPU:    &Pressure{Some: Stall{Total: 7 * time.Microsecond}},
	}
	if got := m.Pressures("/pods"); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
	if got := m.Pressures("/none"); got != (Pressures{}) {
		t.Errorf("unexpected pressure %+v", got)
	}
}

func FuzzPressure(f *testing.F) {
	f.Add("some avg10=1.50 avg60=0.25 avg300=0.10 total=2500000\nfull avg10=0 avg60=0 avg300=0 total=1\n")
	f.Add("some total=9223372036854775807")
	f.Add("full avg10 total=")
	f.Fuzz(func(t *testing.T, text string) {
		p, err := parsePressure(text)
		if (p == nil) == (err == nil) {
			t.Fatalf("%v, %v", p, err)
		}
		if p != nil && (p.Some.Total < 0 || p.Full.Total < 0) {
			t.Errorf("%+v", p)
		}
	})
}
