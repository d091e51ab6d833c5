package core

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"maps"
	"reflect"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"hyperkube/internal/api"
	"hyperkube/internal/api/validate"
)

func secret() api.Kind[*corev1.Secret] {
	return api.Kind[*corev1.Secret]{
		Names:   api.Names{Kind: "Secret", Plural: "secrets"},
		Version: "v1",
		Scope:   api.Namespaced,
		New:     func() *corev1.Secret { return &corev1.Secret{} },
		NewList: func() runtime.Object { return &corev1.SecretList{} },
		Default: defaultSecret,
		Validate: func(_ context.Context, s *corev1.Secret) field.ErrorList {
			return validateSecret(s)
		},
		Warnings: secretWarnings,
		Update: api.KindUpdate[*corev1.Secret]{
			AsNew:    true,
			Changes:  validateSecretChanges,
			Validate: func(_ context.Context, s, _ *corev1.Secret) field.ErrorList { return validateSecret(s) },
		},
		Fields: func(s *corev1.Secret) fields.Set {
			return fields.Set{"type": string(s.Type)}
		},
		FieldNames: []string{"type"},
		Columns: []metav1.TableColumnDefinition{
			api.NameColumn,
			api.Column("Type", "string", corev1.Secret{}.SwaggerDoc()["type"]),
			api.Column("Data", "string", corev1.Secret{}.SwaggerDoc()["data"]),
			api.AgeColumn,
		},
		Row: func(s *corev1.Secret) []any {
			return []any{s.Name, string(s.Type), int64(len(s.Data)), api.Age(s.CreationTimestamp)}
		},
	}
}

// defaultSecret sets the type of a Secret to Opaque if it is missing, and moves stringData to data.
func defaultSecret(s *corev1.Secret) {
	if s.Type == "" {
		s.Type = corev1.SecretTypeOpaque
	}
	// stringData is write-only and merged into data.
	if len(s.StringData) > 0 && s.Data == nil {
		s.Data = make(map[string][]byte, len(s.StringData))
	}
	for k, v := range s.StringData {
		s.Data[k] = []byte(v)
	}
	s.StringData = nil
}

func validateSecret(s *corev1.Secret) field.ErrorList {
	e, data := &validate.Errors{}, field.NewPath("data")
	size := 0
	for _, key := range slices.Sorted(maps.Keys(s.Data)) {
		e.InvalidAll(data.Key(key), key, validation.IsConfigMapKey(key))
		size += len(s.Data[key])
	}
	if size > corev1.MaxSecretSize {
		e.Add(field.ErrorList{field.TooLong(data, "", corev1.MaxSecretSize)})
	}
	missing := func(key string) bool {
		_, ok := s.Data[key]
		return !ok
	}
	need := func(key string) {
		if missing(key) {
			e.Required(data.Key(key), "")
		}
	}
	isJSON := func(key string) {
		need(key)
		if missing(key) {
			return
		}
		if err := json.Unmarshal(s.Data[key], &map[string]any{}); err != nil {
			e.Invalid(data.Key(key), "<secret contents redacted>", err.Error())
		}
	}
	switch s.Type {
	case corev1.SecretTypeServiceAccountToken:
		if s.Annotations[corev1.ServiceAccountNameKey] == "" {
			e.Required(field.NewPath("metadata", "annotations").Key(corev1.ServiceAccountNameKey), "")
		}
	case corev1.SecretTypeDockercfg:
		isJSON(corev1.DockerConfigKey)
	case corev1.SecretTypeDockerConfigJson:
		isJSON(corev1.DockerConfigJsonKey)
	case corev1.SecretTypeBasicAuth:
		if missing(corev1.BasicAuthUsernameKey) && missing(corev1.BasicAuthPasswordKey) {
			need(corev1.BasicAuthUsernameKey)
			need(corev1.BasicAuthPasswordKey)
		}
	case corev1.SecretTypeSSHAuth:
		if len(s.Data[corev1.SSHAuthPrivateKey]) == 0 {
			e.Required(data.Key(corev1.SSHAuthPrivateKey), "")
		}
	case corev1.SecretTypeTLS:
		need(corev1.TLSCertKey)
		need(corev1.TLSPrivateKeyKey)
	}
	return e.List
}

// validateSecretChanges checks that the type of a Secret does not change. An immutable Secret must also keep its data
// and remain immutable.
func validateSecretChanges(_ context.Context, s, old *corev1.Secret) field.ErrorList {
	e := &validate.Errors{}
	e.Add(apivalidation.ValidateImmutableField(s.Type, old.Type, field.NewPath("type")))
	if ptr.Deref(old.Immutable, false) {
		if !ptr.Deref(s.Immutable, false) {
			e.Forbidden(field.NewPath("immutable"), immutableWhenSet)
		}
		if !reflect.DeepEqual(s.Data, old.Data) {
			e.Forbidden(field.NewPath("data"), immutableWhenSet)
		}
	}
	return e.List
}

// secretWarnings warns about a TLS Secret whose certificate and key are invalid or do not match.
func secretWarnings(_ context.Context, s, _ *corev1.Secret) []string {
	if s.Type != corev1.SecretTypeTLS {
		return nil
	}
	if _, err := tls.X509KeyPair(s.Data[corev1.TLSCertKey], s.Data[corev1.TLSPrivateKeyKey]); err != nil {
		return []string{err.Error()}
	}
	return nil
}
