//go:build cgo

package initial

import (
	"encoding/binary"
	"reflect"
	"slices"
	"testing"

	"github.com/opencontainers/runc/libcontainer"
	"golang.org/x/sys/unix"
)

// attribute returns an encoded netlink attribute with padding.
func attribute(kind uint16, value string) []byte {
	b := binary.NativeEndian.AppendUint16(nil, uint16(unix.NLA_HDRLEN+len(value)))
	b = append(binary.NativeEndian.AppendUint16(b, kind), value...)
	for len(b)%unix.NLA_ALIGNTO != 0 {
		b = append(b, 0)
	}
	return b
}

func TestBootstrap(t *testing.T) {
	flags := (&libcontainer.Int32msg{Type: libcontainer.CloneFlagsAttr, Value: unix.CLONE_NEWPID | unix.CLONE_NEWNS}).Serialize()
	paths := (&libcontainer.Bytemsg{Type: libcontainer.NsPathsAttr, Value: []byte("net:/proc/1/ns/net,mnt:/proc/2/fd/3")}).Serialize()
	score := (&libcontainer.Bytemsg{Type: libcontainer.OomScoreAdjAttr, Value: []byte("-998")}).Serialize()
	rooted := (&libcontainer.Boolmsg{Type: libcontainer.RootlessEUIDAttr}).Serialize()
	for name, c := range map[string]struct {
		body []byte
		want bootstrap
		bad  bool
	}{
		"nothing": {},
		"all": {slices.Concat(flags, paths, score, rooted),
			bootstrap{unix.CLONE_NEWPID | unix.CLONE_NEWNS, []string{"net:/proc/1/ns/net", "mnt:/proc/2/fd/3"}, "-998"}, false},
		"rootless":      {body: (&libcontainer.Boolmsg{Type: libcontainer.RootlessEUIDAttr, Value: true}).Serialize(), bad: true},
		"mapped users":  {body: attribute(libcontainer.UidmapAttr, "0 1000 1\x00"), bad: true},
		"short flags":   {body: attribute(libcontainer.CloneFlagsAttr, "\x00"), bad: true},
		"truncated":     {body: paths[:len(paths)-5], bad: true},
		"no length":     {body: []byte{0, 0, 0, 0}, bad: true},
		"half a header": {body: []byte{8}, bad: true},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := parseBootstrap(c.body)
			if (err != nil) != c.bad || !c.bad && !reflect.DeepEqual(got, c.want) {
				t.Errorf("%+v, %v", got, err)
			}
		})
	}
}

func FuzzBootstrap(f *testing.F) {
	f.Add((&libcontainer.Bytemsg{Type: libcontainer.NsPathsAttr, Value: []byte("net:/proc/1/ns/net")}).Serialize())
	f.Add([]byte{4, 0})
	f.Fuzz(func(_ *testing.T, body []byte) {
		_, _ = parseBootstrap(body) // must not panic or loop
	})
}

// TestEnterRefuses checks that namespaces which a multithreaded process cannot join are rejected.
func TestEnterRefuses(t *testing.T) {
	for _, namespace := range []string{"user:/proc/self/ns/user", "pid:/proc/self/ns/pid", "what:/proc/self/ns/net", ""} {
		if err := checkNamespaces([]string{namespace}); err == nil {
			t.Errorf("%q was not refused", namespace)
		}
	}
}
