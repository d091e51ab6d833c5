package idle

import (
	"slices"
	"strings"
	"testing"
)

const smaps = `00400000-00a00000 r-xp 00000000 fe:00 123  /bin/program
Size:               6144 kB
Rss:                3000 kB
Anonymous:             0 kB
VmFlags: rd ex mr mw me
00a00000-00b00000 r--p 00600000 fe:00 123  /bin/program
Rss:                 100 kB
Anonymous:             4 kB
00b00000-00c00000 rw-p 00700000 fe:00 123  /bin/program
Anonymous:             0 kB
00c00000-00d00000 r--s 00700000 fe:00 123  /bin/program
Anonymous:             0 kB
00d00000-00e00000 r--p 00000000 fe:00 124  /bin/other program
Anonymous:             0 kB
00e00000-00e01000 r-xp 00000000 00:00 0  [vdso]
Anonymous:             0 kB
7f0000000000-7f0000001000 rw-p 00000000 00:00 0
Anonymous:             0 kB
00f00000-00f01000 r--p 00000000 fe:00 123  /bin/program
Anonymous:             0 kB
`

func TestCleanPages(t *testing.T) {
	got, err := cleanPages(strings.NewReader(smaps))
	if want := []pages{{0x400000, 0xa00000}, {0xc00000, 0xd00000}, {0xd00000, 0xe00000}, {0xf00000, 0xf01000}}; err != nil || !slices.Equal(got, want) {
		t.Errorf("%x %v, want %x", got, err, want)
	}
	if _, err := cleanPages(strings.NewReader("z-y r-xp 0 0 1 /bin/program\n")); err == nil {
		t.Error("no error")
	}
}
