package supportbundle

import (
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"encoding/pem"
	mathrand "math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// secretText returns a credential in a form that occurs in files, and the text that must not be in the archive, or any
// part of it. The text is on several lines.
func secretText(random *mathrand.Rand, known []byte) (text, secret string) {
	body := make([]byte, 100+random.IntN(3000))
	_, _ = rand.Read(body) // never fails
	block := pem.EncodeToMemory(&pem.Block{Type: []string{"RSA PRIVATE KEY", "PRIVATE KEY", "EC PRIVATE KEY"}[random.IntN(3)], Bytes: body})
	secret = string(block)
	switch random.IntN(4) {
	case 0:
		return secret, secret
	case 1: // in JSON
		secret = strings.ReplaceAll(secret, "\n", `\n`)
		return `{"key":"` + secret + "\"}\n", secret
	case 2: // in a kubeconfig
		secret = base64.StdEncoding.EncodeToString(block)
		return "    client-key-data: " + secret + "\n", secret
	default: // the value of a Secret
		return "value " + string(known) + " of a Secret\n", string(known)
	}
}

// TestCut compares the end of random files with a model that removes the credentials from the whole file and then takes
// its end. No part of a credential may remain where the size limit cuts it.
func TestCut(t *testing.T) {
	random := mathrand.New(mathrand.NewPCG(1, 2))
	known := bytes.Repeat([]byte("first line of a secret\nother line of the secret\n"), 40)
	for range 30 {
		var content strings.Builder
		var secrets []string
		if random.IntN(4) == 0 { // longer than what is read of a file
			line := strings.Repeat("an ordinary line of a log\n", 1000)
			content.WriteString(strings.Repeat(line, (overlap+10000)/len(line)+1))
		}
		for range 1 + random.IntN(6) {
			text, secret := secretText(random, known)
			secrets = append(secrets, secret)
			content.WriteString(strings.Repeat("an ordinary line of a log\n", random.IntN(30)) + text)
		}
		file := filepath.Join(t.TempDir(), "log")
		if err := os.WriteFile(file, []byte(content.String()), 0o600); err != nil {
			t.Fatal(err)
		}
		c, redact := &collection{}, newRedactor([][]byte{known})
		limit := 50 + random.IntN(4000)
		c.addFile("", file, int64(limit))
		files, errs := c.close()
		if len(files) != 1 || len(errs) > 0 {
			t.Fatalf("%d files, %v", len(files), errs)
		}
		got := string(files[0].content(redact))
		const window = 24
		for _, secret := range secrets {
			for i := 0; i+window <= len(secret); i += window / 2 {
				part := secret[i : i+window]
				if strings.Contains(part, "-----") || strings.Contains(part, "LS0t") { // the lines around a key
					continue
				}
				if strings.Contains(got, part) {
					t.Fatalf("limit %d: %q remains in\n%s", limit, part, got)
				}
			}
		}
		_, end, cut := strings.Cut(got, "… the beginning is left out\n")
		if !cut {
			end = got
		}
		if model := string(redact.file(file, []byte(content.String()))); !strings.HasSuffix(model, end) || len(end) > limit {
			t.Fatalf("limit %d: not the end of the file without credentials:\n%s", limit, got)
		}
	}
}
