package customresource

import (
	"fmt"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"

	"hyperkube/internal/api"
)

// ageColumn is the only column, apart from the name, of definitions that define no printer columns.
var ageColumn = apiextensionsv1.CustomResourceColumnDefinition{
	Name: "Age", Type: "date", JSONPath: ".metadata.creationTimestamp",
	Description: metav1.ObjectMeta{}.SwaggerDoc()["creationTimestamp"],
}

// table returns the columns of tables of this version (for kubectl get), and a function that returns the cells of an
// object. The first column is the name. As in upstream, a column with an invalid path and all after it are omitted.
//
// https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definitions/#additional-printer-columns
func (v *kindVersion) table() ([]metav1.TableColumnDefinition, func(api.Object) []any) {
	given := v.AdditionalPrinterColumns
	if len(given) == 0 {
		given = []apiextensionsv1.CustomResourceColumnDefinition{ageColumn}
	}
	columns := []metav1.TableColumnDefinition{api.NameColumn}
	var paths []*path
	for _, c := range given {
		p, err := parsePath(c.JSONPath)
		if err != nil {
			break // as in upstream, ignore this column and all later ones
		}
		description := c.Description
		if description == "" {
			description = fmt.Sprintf("Custom resource definition column (in JSONPath format): %s", c.JSONPath)
		}
		paths = append(paths, p)
		columns = append(columns, metav1.TableColumnDefinition{
			Name: c.Name, Type: c.Type, Format: c.Format, Description: description, Priority: c.Priority,
		})
	}
	return columns, func(o api.Object) []any {
		obj := unstructuredOf(o)
		cells := make([]any, 1, len(columns))
		cells[0] = obj.GetName()
		for i, p := range paths {
			value, ok := p.find(obj.Object)
			if !ok {
				cells = append(cells, nil)
				continue
			}
			cells = append(cells, formatCell(columns[i+1].Type, value))
		}
		return cells
	}
}

// formatCell returns the cell for a value in a column of the given type. A date is shown as the time since then. It
// returns nil if the value does not have this type.
func formatCell(columnType string, value any) any {
	if columnType == "string" {
		if text, ok := formatValue(value); ok {
			return text
		}
		return nil
	}
	switch value := value.(type) {
	case int64:
		switch columnType {
		case "integer":
			return value
		case "number":
			return float64(value)
		}
	case float64:
		switch columnType {
		case "integer":
			return int64(value)
		case "number":
			return value
		}
	case bool:
		if columnType == "boolean" {
			return value
		}
	case string:
		if columnType == "date" {
			var at metav1.Time
			switch err := at.UnmarshalQueryParameter(value); {
			case err != nil:
				return "<invalid>"
			case at.IsZero():
				return "<unknown>"
			}
			return duration.HumanDuration(time.Since(at.Time))
		}
	}
	return nil
}
