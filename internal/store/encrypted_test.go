package store

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"k8s.io/apiserver/pkg/storage/value"
)

// reverser is a transformer that reverses bytes and prepends a mark that identifies the key.
type reverser struct {
	mark, stale byte
	broken      atomic.Bool
	rotated     atomic.Bool
}

func (r *reverser) TransformToStorage(_ context.Context, data []byte, dataCtx value.Context) ([]byte, error) {
	data = append([]byte(string(dataCtx.AuthenticatedData())+"\x00"), data...)
	slices.Reverse(data)
	return append([]byte{r.mark}, data...), nil
}

func (r *reverser) TransformFromStorage(_ context.Context, data []byte, dataCtx value.Context) ([]byte, bool, error) {
	if r.broken.Load() {
		return nil, false, errors.New("no key service")
	}
	if len(data) == 0 || data[0] != r.mark && data[0] != r.stale {
		return nil, false, errors.New("unknown key")
	}
	out := slices.Clone(data[1:])
	slices.Reverse(out)
	plain, ok := bytes.CutPrefix(out, []byte(string(dataCtx.AuthenticatedData())+"\x00"))
	if !ok {
		return nil, false, errors.New("belongs to another key")
	}
	return plain, data[0] == r.stale || r.rotated.Load(), nil
}

func TestEncryption(t *testing.T) {
	ctx := testContext(t)
	s := newStore(t, Config{})
	transformer := &reverser{mark: 1, stale: 2}
	cfg := collectionConfig("secrets")
	cfg.Transformer = transformer
	c := s.Collection(cfg)
	a := mustCreate(t, c, "ns/a", "1")
	resp, err := s.client.Get(ctx, "/registry/secrets/ns/a")
	if err != nil || len(resp.Kvs) != 1 || resp.Kvs[0].Value[0] != 1 || bytes.Contains(resp.Kvs[0].Value, []byte("metadata")) {
		t.Fatalf("stored: %v %v", resp, err)
	}
	put := func(key string, value []byte) {
		t.Helper()
		if _, err := s.client.Put(ctx, "/registry/secrets/"+key, string(value)); err != nil {
			t.Fatal(err)
		}
	}
	// Values encrypted with an old key and an unknown key, a value copied from another key, and an
	// invalid plaintext.
	data := a.Bytes()
	old, _ := (&reverser{mark: 2}).TransformToStorage(ctx, data, value.DefaultContext("/registry/secrets/ns/old"))
	put("ns/old", old)
	put("ns/unknown", append([]byte{9}, data...))
	put("ns/moved", resp.Kvs[0].Value)
	odd, _ := transformer.TransformToStorage(ctx, []byte("odd"), value.DefaultContext("/registry/secrets/ns/odd"))
	put("ns/odd", odd)

	page := mustList(t, c, ListOptions{Revision: -1})
	for i, want := range []struct {
		stale bool
		bytes string
		err   string
	}{
		{bytes: string(data)}, // a
		{stale: true, err: "decrypting /registry/secrets/ns/moved: belongs to another key"},
		{bytes: "odd", err: "decoding /registry/secrets/ns/odd: "},
		{bytes: string(data), stale: true}, // old
		{stale: true, err: "decrypting /registry/secrets/ns/unknown: unknown key"},
	} {
		e := page.Entries[i]
		_, err := e.Object()
		if want.err == "" != (err == nil) || err != nil && (!strings.Contains(err.Error(), want.err) || !errors.Is(err, ErrCorrupt)) {
			t.Errorf("%s: %v, want %q", e.Key(), err, want.err)
		}
		if string(e.Bytes()) != want.bytes || e.Stale() != want.stale || (e.Bytes() == nil) != (e.Err() != nil) {
			t.Errorf("%s: stale %v, error %v, bytes %q", e.Key(), e.Stale(), e.Err(), e.Bytes())
		}
	}
	// An unchanged object is only written if its encryption is stale.
	entries, _ := mustCommit(t, s, c.Update(page.Entries[3], configMap("ns/a", "1"), 0))
	if entries[0] == page.Entries[3] || entries[0].Stale() {
		t.Error("a stale value was not written again")
	}
	again, _ := mustCommit(t, s, c.Update(entries[0], configMap("ns/a", "1"), 0))
	if again[0] != entries[0] {
		t.Error("a fresh value was written again")
	}
	// Keys can be rotated after the value was decrypted.
	transformer.rotated.Store(true)
	if again, _ = mustCommit(t, s, c.Update(entries[0], configMap("ns/a", "1"), 0)); again[0] == entries[0] {
		t.Error("a value of an old key was not written again")
	}
	transformer.rotated.Store(false)
	// A value that could not be decrypted becomes readable when its key is available again.
	put("ns/late", resp.Kvs[0].Value)
	transformer.broken.Store(true)
	late, _ := (&reverser{mark: 1}).TransformToStorage(ctx, data, value.DefaultContext("/registry/secrets/ns/late"))
	put("ns/late", late)
	e, err := c.Get(ctx, "ns/late", -1)
	if err != nil || e.Err() == nil {
		t.Errorf("without a key: %v %v", err, e.Err())
	}
	transformer.broken.Store(false)
	if valueOf(e) != "1" {
		t.Errorf("with the key again: %s", valueOf(e))
	}
}
