package certificates

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"slices"
	"strings"

	certificatesv1 "k8s.io/api/certificates/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"hyperkube/internal/api"
	"hyperkube/internal/api/validate"
)

// maxTrustBundle is the maximum size of a trust bundle in bytes.
const maxTrustBundle = 1 << 20

func clusterTrustBundle() api.Kind[*certificatesv1.ClusterTrustBundle] {
	return api.Kind[*certificatesv1.ClusterTrustBundle]{
		Names:   api.Names{Kind: "ClusterTrustBundle", Plural: "clustertrustbundles"},
		Group:   group,
		Version: version,
		Scope:   api.Cluster,
		New:     func() *certificatesv1.ClusterTrustBundle { return &certificatesv1.ClusterTrustBundle{} },
		NewList: func() runtime.Object { return &certificatesv1.ClusterTrustBundleList{} },

		NameOf: func(b *certificatesv1.ClusterTrustBundle) func(string, bool) []string {
			return func(name string, prefix bool) []string { return bundleName(b.Spec.SignerName, name, prefix) }
		},
		Validate: func(_ context.Context, b *certificatesv1.ClusterTrustBundle) field.ErrorList {
			return checkTrustBundle(b, nil)
		},
		Update: api.KindUpdate[*certificatesv1.ClusterTrustBundle]{
			Validate: func(_ context.Context, b, old *certificatesv1.ClusterTrustBundle) field.ErrorList {
				return append(checkTrustBundle(b, old),
					apivalidation.ValidateImmutableField(b.Spec.SignerName, old.Spec.SignerName, field.NewPath("spec", "signerName"))...)
			},
			AsNew: true, NewFirst: true,
		},
		ForbidUnconditionalUpdate: true,
		Fields: func(b *certificatesv1.ClusterTrustBundle) fields.Set {
			return fields.Set{"spec.signerName": b.Spec.SignerName}
		},
		FieldNames: []string{"spec.signerName"},
		Columns: []metav1.TableColumnDefinition{
			api.NameColumn,
			api.Column("SignerName", "string", certificatesv1.ClusterTrustBundleSpec{}.SwaggerDoc()["signerName"]),
		},
		Row: func(b *certificatesv1.ClusterTrustBundle) []any {
			signer := "<none>"
			if b.Spec.SignerName != "" {
				signer = b.Spec.SignerName
			}
			return []any{b.Name, signer}
		},
	}
}

// bundleName returns the error messages for the name of a ClusterTrustBundle, which must start with
// the name of its signer, with colons instead of slashes, and otherwise not contain a colon. prefix
// is set if name is the prefix of a generated name.
func bundleName(signer, name string, prefix bool) []string {
	if signer == "" {
		if strings.Contains(name, ":") {
			return []string{`ClusterTrustBundle without signer name must not have ":" in its name`}
		}
		return apivalidation.NameIsDNSSubdomain(name, prefix)
	}
	needed := strings.ReplaceAll(signer, "/", ":") + ":"
	rest, ok := strings.CutPrefix(name, needed)
	if !ok {
		return []string{fmt.Sprintf("ClusterTrustBundle for signerName %s must be named with prefix %s", signer, needed)}
	}
	return apivalidation.NameIsDNSSubdomain(rest, prefix)
}

func checkTrustBundle(b, old *certificatesv1.ClusterTrustBundle) field.ErrorList {
	var e validate.Errors
	if b.Spec.SignerName != "" {
		e.SignerName(field.NewPath("spec", "signerName"), b.Spec.SignerName)
	}
	// Stored bundles are not parsed again, because a newer parser may reject them.
	if old == nil || old.Spec.TrustBundle != b.Spec.TrustBundle {
		checkAnchors(&e, b.Spec.TrustBundle, field.NewPath("spec", "trustBundle"))
	}
	return e.List
}

// checkAnchors checks that text consists of distinct PEM-encoded CA certificates, without PEM
// headers, and is at most maxTrustBundle bytes long.
func checkAnchors(e *validate.Errors, text string, at *field.Path) {
	if len(text) > maxTrustBundle {
		e.Add(field.ErrorList{field.TooLong(at, "", maxTrustBundle)})
		return
	}
	bad := func(format string, args ...any) { e.Invalid(at, "<value omitted>", fmt.Sprintf(format, args...)) }
	before := len(e.List)
	where := map[string][]int{}
	var order []string
	rest := []byte(text)
	for i := 0; ; i++ {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		if block.Type != blockType {
			bad("entry %d has bad block type: %v", i, block.Type)
			continue
		}
		if len(block.Headers) > 0 {
			bad("entry %d has PEM block headers", i)
			continue
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		switch {
		case err != nil:
			bad("entry %d does not parse as X.509", i)
		case !cert.IsCA:
			bad("entry %d does not have the CA bit set", i)
		case !cert.BasicConstraintsValid:
			bad("entry %d has invalid basic constraints", i)
		default:
			if !slices.Contains(order, string(block.Bytes)) {
				order = append(order, string(block.Bytes))
			}
			where[string(block.Bytes)] = append(where[string(block.Bytes)], i)
		}
	}
	if len(e.List) > before {
		return
	}
	if len(order) == 0 {
		bad("at least one trust anchor must be provided")
	}
	for _, anchor := range order {
		if indices := where[anchor]; len(indices) > 1 {
			bad("duplicate trust anchor (indices %v)", indices)
		}
	}
}
